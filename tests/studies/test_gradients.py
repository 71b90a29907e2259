"""The gradient study, on decisions where the approximations are exact and where they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dips.credit.true_gradient import history, true_gradient
from dips.data.interactions import Interactions
from dips.errors import ConfigError, DataError, TrainingDiverged
from dips.model.trained_model import TrainedModel
from dips.policy.base import Policy
from dips.policy.registry import PolicySpec, build_policy
from dips.policy.stacked import StackedPolicies
from dips.recommender.registry import make_recommender
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import Rollout
from dips.rollout.trace import StoredTrace
from dips.stream.users import EventColumns, make_stream
from dips.studies.checks import recommender_spec, resolved
from dips.studies.gradients import GradientStudy, study_gradients
from dips.testing import random_world
from dips.training.config import TrainConfig
from dips.training.policy_batches import RefreshTable, interval_policy_batch
from dips.training.policy_gradients import policy_gradients

SIZE, LENGTHS = 2, (14, 9, 12, 3, 11, 7)
STILL = {"learning_rate": 0.0, "policy_lr": 0.0, "user_lr": 0.0}
CONFIG = TrainConfig.of(
    policy="dips", size=SIZE, dim=4, update_interval=1, credit="identity", lr_schedule="constant"
)
PAPER_RUN = {"users": 6, "steps": 50, "longest": 50, "queue": 50, "seed": 0, "tolerance": 1e-12}


def _untrained(config: TrainConfig, data: Interactions) -> TrainedModel:
    """Return an untrained model with large parameters, so that decisions differ clearly."""
    config = resolved(data, config)
    spec = recommender_spec(data, config)
    shape = PolicySpec(
        name=config.sketch.policy, size=config.sketch.size, items=data.items, dim=config.model.dim
    )
    policy = build_policy(shape, 3)
    return TrainedModel(
        spec=spec,
        recommender=_scaled(make_recommender(spec, 1)),
        item_ids=data.item_ids,
        policy_spec=shape,
        policy=policy if config.sketch.policy == "last" else _scaled(policy),
        periods=config.sketch.schedule.periods,
    )


def _scaled(module: Any) -> Any:
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(4.0)
    return module


def _study(config: TrainConfig = CONFIG, **changes: Any) -> GradientStudy:
    data = random_world(LENGTHS, items=9, seed=2)
    return study_gradients(_untrained(config, data), config, data, **{**PAPER_RUN, **changes})


def test_the_first_decision_has_an_exact_gradient() -> None:
    """With one decision a queue loses nothing."""
    first = _study(steps=1, longest=SIZE + 2).samples[0]
    assert (first.step, first.users) == (SIZE + 1, 5)
    for signs, aligned in zip(first.signs.values(), first.alignment.values(), strict=True):
        assert signs.preserved == signs.nonzero > 100
        assert signs.made_nonzero == 0
        assert aligned == pytest.approx({"cosine": 1.0, "length": 1.0})


@pytest.mark.parametrize("every", [1, 2])
def test_an_unlimited_queue_equals_replay_with_identity_credit(every: int) -> None:
    """With fixed parameters the queue lacks only the paths between sketches."""
    config = CONFIG.but(every=every, queue=50, dropout=0.0)
    data = random_world(LENGTHS, items=9, seed=2)
    trained = _untrained(config, data)
    columns = EventColumns.of(data)
    columns = replace(columns, rating=columns.rating.double())
    stream = make_stream([data], columns)
    keys = stream.keys([0], 1)
    rollout = Rollout(
        stream, size=SIZE, schedule=config.sketch.schedule, keys=keys, recorded_signals=[]
    )
    stack = StackedRecommenders.of([trained.recommender.double()])
    policies = StackedPolicies.of([_network(trained.policy)])
    rollout.advance(policies, stack)
    refresh_table = RefreshTable.of(
        config.sketch.schedule, SIZE, stream.longest, columns.item.device
    )
    trace = rollout.trace
    assert isinstance(trace, StoredTrace)
    for t in range(SIZE + every, stream.longest):
        policy_batch = interval_policy_batch(
            refresh_table, 50, rollout.base, stream.length, range(t, t + 1)
        )
        assert policy_batch is not None
        queue_gradient = policy_gradients(
            stack, policies, trace, refresh_table, policy_batch, config
        )
        past = history(trace, (rollout.base + t)[stream.length > t])
        assert past.item.shape == ((stream.length > t).sum(), t + 1)
        arguments = (stack, policies, past, SIZE, config.sketch.schedule)
        expected = true_gradient(*arguments, identity=True)
        exact = true_gradient(*arguments)
        for name, value in queue_gradient.items():
            torch.testing.assert_close(value, expected[name], atol=1e-12, rtol=1e-9)
        lasting = t < SIZE + 2 * every  # the first sketch still predicts
        assert (
            all(torch.allclose(exact[name], queue_gradient[name]) for name in queue_gradient)
            == lasting
        )


def _network(policy: Policy) -> torch.nn.Module:
    assert isinstance(policy, torch.nn.Module)
    policy.dropout = 0.0
    return policy.double()


def test_a_queue_longer_than_the_history_changes_nothing() -> None:
    assert _study(queue=50).samples == _study(queue=500).samples
    short = _study(queue=1)
    for sample in short.samples:
        assert sample.signs["dips"] == sample.signs["dips@1"]
    assert _study(queue=3).samples != short.samples


def test_a_shorter_queue_zeroes_more_entries() -> None:
    study = _study(CONFIG.but(**STILL))
    found = study.summary()
    assert found["dips"]["zeroed"] < 0.05 < found["dips@1"]["zeroed"]
    assert found["dips@1"]["length"] < found["dips"]["length"]
    assert 0 < found["dips"]["negated"] < found["dips"]["preserved"]
    steps = [sample.step for sample in study.samples]
    assert steps == list(range(SIZE + 1, max(LENGTHS)))
    users = [sum(length > t for length in LENGTHS) for t in steps]
    assert [sample.users for sample in study.samples] == users


def test_parameters_are_updated_between_sampled_steps() -> None:
    """Parameters are updated at every step, also between the sampled ones."""
    moving = {"policy_lr": 0.02, "learning_rate": 0.02}
    every = _study(CONFIG.but(**moving)).samples
    assert every != _study(CONFIG.but(**STILL)).samples
    some = _study(CONFIG.but(**moving), steps=4).samples
    assert len(some) == 4
    assert all(sample in every for sample in some)


def test_learning_rates_fit_one_update_per_step() -> None:
    """Those of a run with update interval 1, else the paper's; scaled by the share of users."""
    for interval in (None, 4):
        found = _study(CONFIG.but(update_interval=interval, learning_rate=0.5), steps=1).about[
            "rates"
        ]
        assert found["learning_rate"] == pytest.approx(2e-5 * 5 / 256)
        assert found["policy_lr"] == pytest.approx(2e-4 * 5 / 256)
    own = CONFIG.but(learning_rate=0.5, weight_decay=0.1)
    for users, share in ((None, 2 / 6), (4, 2 / 4)):
        found = _study(own.but(user_batch=users), users=2, steps=1).about["rates"]
        assert found["learning_rate"] == pytest.approx(0.5 * share)


def test_the_seed_fixes_users_and_steps() -> None:
    one, other = _study(users=3, steps=4, seed=1), _study(users=3, steps=4, seed=2)
    assert one == _study(users=3, steps=4, seed=1)
    assert one.samples != other.samples
    assert one.about["users"] == 3


def test_implicit_data_and_batches() -> None:
    config = CONFIG.but(every=3, inner_lr=0.2, inner_loss="softmax", **STILL)
    data = random_world(LENGTHS, items=9, seed=2, explicit=False)
    study = study_gradients(_untrained(config, data), config, data, **PAPER_RUN)
    assert [sample.step for sample in study.samples] == list(range(SIZE + 3, max(LENGTHS)))
    assert study.samples[2].signs["dips"].shares()["preserved"] == 1.0  # the first sketch predicts
    assert study.summary()["dips"]["preserved"] < 1.0


def test_the_trained_model_is_not_changed() -> None:
    data = random_world(LENGTHS, items=9, seed=2)
    trained = _untrained(CONFIG, data)
    before = [value.clone() for value in trained.recommender.parameters()]
    study_gradients(trained, CONFIG.but(learning_rate=0.1), data, **PAPER_RUN)
    for old, new in zip(before, trained.recommender.parameters(), strict=True):
        assert torch.equal(old, new)
    assert np.array_equal(data.lengths, LENGTHS)


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("last", "'last' has no gradient to study"),
        ("learned", "'learned' reads signals of the recommender"),
    ],
)
def test_other_policies_are_refused(policy: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _study(CONFIG.but(policy=policy))


@pytest.mark.parametrize("name", ["users", "steps", "queue"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0: it must be at least 1"):
        _study(**{name: 0})


def test_histories_that_are_too_short_are_refused() -> None:
    with pytest.raises(ConfigError, match="--longest is 3"):
        _study(longest=3)
    data = random_world([3, 2, 1], items=9)
    with pytest.raises(DataError, match="no user has more than 3 interactions"):
        study_gradients(_untrained(CONFIG, data), CONFIG, data, **PAPER_RUN)


def test_divergence_raises() -> None:
    with pytest.raises(TrainingDiverged, match="is not finite"):
        _study(CONFIG.but(learning_rate=1e30))
