"""Alternating updates and held-out users."""

from types import SimpleNamespace

import pytest
import torch
from ablation_training import AlternatingUpdates, HeldOutUsers, TrainingVariant, train_as

from dips.studies import run as run_module
from dips.training.batches import TrainingBlock
from dips.training.config import TrainConfig
from dips.training.policy_batches import PolicyBatch

SEEDS, USERS = [3, 4], 40
CONFIG = TrainConfig.of(policy_batch_size=30)


class Known(TrainingBlock):
    """Two runs with the same users and three predictions each, in one policy batch."""

    def __init__(self):
        user = torch.arange(USERS).repeat_interleave(3).repeat(2)
        self.trace = SimpleNamespace(user=user, run_rows=[0, 3 * USERS, 6 * USERS])
        self.is_last, self.rows, self.widths = True, torch.arange(6 * USERS).view(2, -1), []

    def batches(self, seeds, epoch, size):
        return list(torch.split(self.rows, size, 1))

    def policy_batches(self, clock, seeds, epoch, config):
        self.widths.append(config.policy_training.policy_batch_size)
        places = torch.arange(3 * USERS).repeat(2, 1)
        return [PolicyBatch(self.rows, self.rows, places[..., None])]


def users_of(block, rows, run):
    return set(block.trace.user[rows[run][rows[run] >= 0]].tolist())


def test_alternating_updates():
    known = Known()
    block = AlternatingUpdates(known)
    assert block.is_last
    odd, even = (block.batches(SEEDS, epoch, 50) for epoch in (1, 2))
    assert torch.equal(torch.cat(odd, 1), known.rows)
    assert [bool((rows == -1).all()) for rows in even] == [True]
    assert block.policy_batches(None, SEEDS, 1, CONFIG) == []
    assert len(block.policy_batches(None, SEEDS, 2, CONFIG)) == 1


@pytest.mark.parametrize("train_policy", [True, False])
def test_held_out_users(train_policy):
    known = Known()
    block = HeldOutUsers(known, train_policy=train_policy)
    rows = torch.cat(list(block.batches(SEEDS, 1, 50)), 1)
    (policy_batch,) = block.policy_batches(None, SEEDS, 1, CONFIG)
    assert known.widths == [120 if train_policy else 40]  # the usual number of decisions
    for run in range(2):
        read, decided = users_of(block, rows, run), users_of(block, policy_batch.decided, run)
        assert 0.6 * USERS < len(read) < 0.9 * USERS
        assert decided == (set(range(USERS)) - read if train_policy else read)
    assert users_of(block, rows, 0) != users_of(block, rows, 1)  # runs hold out different users
    assert torch.equal(policy_batch.prediction_places[..., 0] >= 0, policy_batch.decided >= 0)


def test_held_out_users_change_with_the_epoch():
    fixed, changing = (
        HeldOutUsers(Known(), train_policy=True, each_epoch=each_epoch)
        for each_epoch in (False, True)
    )
    read = [
        [
            users_of(block, torch.cat(list(block.batches(SEEDS, epoch, 50)), 1), 0)
            for epoch in (1, 2)
        ]
        for block in (fixed, changing)
    ]
    assert read[0][0] == read[0][1]
    assert read[1][0] != read[1][1]


def test_held_out_users_may_also_train_the_recommender():
    block = HeldOutUsers(Known(), train_policy=True, train_recommender=True)
    rows = torch.cat(list(block.batches(SEEDS, 1, 50)), 1)
    (policy_batch,) = block.policy_batches(None, SEEDS, 1, CONFIG)
    assert len(users_of(block, rows, 0)) == USERS
    assert 0.1 * USERS < len(users_of(block, policy_batch.decided, 0)) < 0.4 * USERS


def test_the_training_function_is_patched_and_restored():
    before = run_module.fit

    def fail():
        with train_as(TrainingVariant(AlternatingUpdates)):
            assert run_module.fit is not before
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert run_module.fit is before
    with train_as(None):
        assert run_module.fit is before
