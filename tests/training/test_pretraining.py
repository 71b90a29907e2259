"""Joint training of one policy: the mean of the copies that several data sets train."""

import pytest
import torch

from dips.data.synthetic import stream
from dips.errors import TrainingDiverged
from dips.stream.users import EventColumns
from dips.studies.checks import resolved
from dips.studies.run import start_stack
from dips.training.config import TrainConfig
from dips.training.pretraining import Participant, fit_jointly
from dips.training.rollouts import TrainingRollouts
from dips.training.trainer import fit

EPOCHS = 3
WORLDS = [stream(users=30, items=64, events=12, seed=seed) for seed in range(2)]


def participant(data, **settings):
    parts = data.split_users(0.8, 0.1, 0.1, seed=0)
    config = TrainConfig.of(**{
        "policy": "learned", "size": 3, "epochs": EPOCHS, "policy_freeze_epochs": 0, "dim": 4,
        "batch_size": 64, "baselines": (), "device": "cpu", "policy_warmup_epochs": 0,
        "user_batch": parts[0].users, "revert_tolerance": float("inf"), "initial_policy": "rule",
        **settings,
    })  # fmt: skip
    config = resolved(parts[0], config)
    started = start_stack([(parts, config)], "cpu")
    rollouts = TrainingRollouts(started.work, EventColumns.of(data, "cpu"))
    return Participant(started.state, started.work[0], rollouts)


def test_one_data_set_is_trained_as_by_fit():
    alone = participant(WORLDS[0])
    found = fit_jointly([alone], EPOCHS)
    plain = participant(WORLDS[0])
    columns = EventColumns.of(WORLDS[0], "cpu")
    fit(plain.state, [plain.job], columns, lambda stack, trace: [1.0])
    for name in plain.state.policies.trainable:
        assert torch.equal(found[name], plain.state.policies.state[name][0]), name
    for name, value in plain.state.stack.state.items():
        assert torch.equal(alone.state.stack.state[name], value), name


def test_the_shared_policy_is_the_mean_of_the_copies():
    single = [fit_jointly([participant(data)], 1) for data in WORLDS]
    both = fit_jointly([participant(data) for data in WORLDS], 1)
    moved = False
    for name, value in both.items():
        copies = torch.stack([one[name] for one in single])
        assert torch.equal(value, copies.mean(0)), name
        moved |= not torch.equal(copies[0], copies[1])
    assert moved


def test_every_copy_goes_on_from_the_mean_and_the_order_does_not_matter():
    first = [participant(data) for data in WORLDS]
    second = [participant(data) for data in reversed(WORLDS)]
    seen = []
    found = fit_jointly(first, EPOCHS, lambda epoch, losses: seen.append((epoch, losses)))
    other = fit_jointly(second, EPOCHS)
    for name, value in found.items():
        assert torch.allclose(value, other[name], rtol=0, atol=1e-6), name
        for one in first:
            assert torch.equal(one.state.policies.state[name][0], value)
    assert [epoch for epoch, _ in seen] == [1, 2, 3]
    assert all(len(losses) == 2 for _, losses in seen)


def test_rollouts_must_be_interleaved():
    with pytest.raises(ValueError, match="set user_batch"):
        fit_jointly([participant(WORLDS[0], user_batch=None, user_batches_per_epoch=1)], 1)


def test_a_diverged_run_raises():
    with pytest.raises(TrainingDiverged, match="not finite"):
        fit_jointly([participant(WORLDS[0], learning_rate=1e30)], EPOCHS)
