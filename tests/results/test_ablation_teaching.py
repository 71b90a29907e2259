"""Who learns from whom: in turn, or from users held back."""

from types import SimpleNamespace

import pytest
import torch
from ablation_teaching import HeldBack, InTurn, Teaching, taught

from dips.studies import run as experiment
from dips.training.batches import Block
from dips.training.config import TrainConfig
from dips.training.policy_batches import PolicyBatch

SEEDS, USERS = [3, 4], 40
CONFIG = TrainConfig(policy_batch_size=30)


class Known(Block):
    """Two runs of the same users, three predictions each; all are in one batch, and one lesson."""

    def __init__(self):
        user = torch.arange(USERS).repeat_interleave(3).repeat(2)
        self.trace = SimpleNamespace(user=user, run_rows=[0, 3 * USERS, 6 * USERS])
        self.ends, self.rows, self.widths = True, torch.arange(6 * USERS).view(2, -1), []

    def batches(self, seeds, epoch, size):
        return list(torch.split(self.rows, size, 1))

    def policy_batches(self, clock, seeds, epoch, config):
        self.widths.append(config.policy_batch_size)
        places = torch.arange(3 * USERS).repeat(2, 1)
        return [PolicyBatch(self.rows, self.rows, places[..., None])]


def users_of(block, rows, run):
    return set(block.trace.user[rows[run][rows[run] >= 0]].tolist())


def test_in_turn():
    known = Known()
    block = InTurn(known)
    assert block.ends
    odd, even = (block.batches(SEEDS, epoch, 50) for epoch in (1, 2))
    assert torch.equal(torch.cat(odd, 1), known.rows)
    assert [bool((rows == -1).all()) for rows in even] == [True]
    assert block.policy_batches(None, SEEDS, 1, CONFIG) == []
    assert len(block.policy_batches(None, SEEDS, 2, CONFIG)) == 1


@pytest.mark.parametrize("apart", [True, False])
def test_users_held_back(apart):
    known = Known()
    block = HeldBack(known, apart=apart)
    rows = torch.cat(list(block.batches(SEEDS, 1, 50)), 1)
    (policy_batch,) = block.policy_batches(None, SEEDS, 1, CONFIG)
    assert known.widths == [120 if apart else 40]  # as many who teach as else in a lesson
    for run in range(2):
        read, chose = users_of(block, rows, run), users_of(block, policy_batch.decided, run)
        assert 0.6 * USERS < len(read) < 0.9 * USERS
        assert chose == (set(range(USERS)) - read if apart else read)
    assert users_of(block, rows, 0) != users_of(block, rows, 1)  # each run draws its own
    assert torch.equal(policy_batch.held[..., 0] >= 0, policy_batch.decided >= 0)


def test_others_are_held_back_in_each_epoch():
    fixed, anew = (HeldBack(Known(), apart=True, anew=anew) for anew in (False, True))
    read = [
        [
            users_of(block, torch.cat(list(block.batches(SEEDS, epoch, 50)), 1), 0)
            for epoch in (1, 2)
        ]
        for block in (fixed, anew)
    ]
    assert read[0][0] == read[0][1]
    assert read[1][0] != read[1][1]


def test_they_may_be_read_as_well():
    block = HeldBack(Known(), apart=True, read=True)
    rows = torch.cat(list(block.batches(SEEDS, 1, 50)), 1)
    (policy_batch,) = block.policy_batches(None, SEEDS, 1, CONFIG)
    assert len(users_of(block, rows, 0)) == USERS
    assert 0.1 * USERS < len(users_of(block, policy_batch.decided, 0)) < 0.4 * USERS


def test_experiments_teach_so_meanwhile():
    before = experiment.fit

    def fail():
        with taught(Teaching(InTurn)):
            assert experiment.fit is not before
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert experiment.fit is before
    with taught(None):
        assert experiment.fit is before
