"""The gradient study: where both approximations are exact they look so, elsewhere they do not."""

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
from dips.stream.users import Columns, make_stream
from dips.studies.checks import describe
from dips.studies.gradients import GradientStudy, study_gradients
from dips.testing import random_world
from dips.training.config import TrainConfig
from dips.training.policy_batches import Clock, interval_policy_batch
from dips.training.policy_gradients import policy_gradients

SIZE, LENGTHS = 2, (14, 9, 12, 3, 11, 7)
STILL = {"learning_rate": 0.0, "policy_lr": 0.0, "user_lr": 0.0}
CONFIG = TrainConfig(
    policy="dips", size=SIZE, dim=4, stretch=1, credit="identity", lr_schedule="constant"
)
PAPER_RUN = {"users": 6, "steps": 50, "longest": 50, "queue": 50, "seed": 0, "tolerance": 1e-12}


def _bundle(config: TrainConfig, data: Interactions) -> TrainedModel:
    """A run as it starts, with scores that differ enough to matter."""
    spec = describe(data, config)
    shape = PolicySpec(name=config.policy, size=config.size, items=data.items, dim=config.dim)
    policy = build_policy(shape, 3)
    return TrainedModel(
        spec=spec,
        recommender=_louder(make_recommender(spec, 1)),
        item_ids=data.item_ids,
        policy_spec=shape,
        policy=policy if config.policy == "last" else _louder(policy),
        periods=config.schedule.periods,
    )


def _louder(module: Any) -> Any:
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(4.0)
    return module


def _study(config: TrainConfig = CONFIG, **changes: Any) -> GradientStudy:
    data = random_world(LENGTHS, items=9, seed=2)
    return study_gradients(_bundle(config, data), config, data, **{**PAPER_RUN, **changes})


def test_the_first_choice_has_no_past() -> None:
    """One decision: nothing that a queue could forget, whatever moved before."""
    first = _study(steps=1, longest=SIZE + 2).moments[0]
    assert (first.step, first.users) == (SIZE + 1, 5)
    for kept, aligned in zip(first.kept.values(), first.aligned.values(), strict=True):
        assert kept.preserved == kept.nonzero > 100
        assert kept.made_nonzero == 0
        assert aligned == pytest.approx({"cosine": 1.0, "length": 1.0})


@pytest.mark.parametrize("every", [1, 2])
def test_an_endless_queue_is_a_replay_with_the_identity(every: int) -> None:
    """With parameters that stand still the queue lacks the paths between sketches, and no more."""
    config = CONFIG.but(every=every, queue=50, dropout=0.0)
    data = random_world(LENGTHS, items=9, seed=2)
    trained = _bundle(config, data)
    columns = Columns.of(data)
    columns = replace(columns, rating=columns.rating.double())
    stream = make_stream([data], columns)
    keys = stream.keys([0], 1)
    walk = Rollout(stream, size=SIZE, schedule=config.schedule, keys=keys, noted=[])
    stack = StackedRecommenders.of([trained.recommender.double()])
    policies = StackedPolicies.of([_network(trained.policy)])
    walk.advance(policies, stack)
    clock = Clock.of(config.schedule, SIZE, stream.longest, columns.item.device)
    trace = walk.trace
    assert isinstance(trace, StoredTrace)
    for t in range(SIZE + every, stream.longest):
        policy_batch = interval_policy_batch(clock, 50, walk.base, stream.length, range(t, t + 1))
        assert policy_batch is not None
        mine = policy_gradients(stack, policies, trace, clock, policy_batch, config)
        past = history(trace, (walk.base + t)[stream.length > t])
        assert past.item.shape == ((stream.length > t).sum(), t + 1)
        arguments = (stack, policies, past, SIZE, config.schedule)
        expected = true_gradient(*arguments, identity=True)
        whole = true_gradient(*arguments)
        for name, value in mine.items():
            torch.testing.assert_close(value, expected[name], atol=1e-12, rtol=1e-9)
        lasting = t < SIZE + 2 * every  # the first sketch still predicts
        assert all(torch.allclose(whole[name], mine[name]) for name in mine) == lasting


def _network(policy: Policy) -> torch.nn.Module:
    assert isinstance(policy, torch.nn.Module)
    policy.dropout = 0.0
    return policy.double()


def test_a_queue_beyond_history_changes_nothing() -> None:
    assert _study(queue=50).moments == _study(queue=500).moments
    short = _study(queue=1)
    for moment in short.moments:
        assert moment.kept["dips"] == moment.kept["dips@1"]
    assert _study(queue=3).moments != short.moments


def test_the_shorter_queue_loses_more() -> None:
    study = _study(CONFIG.but(**STILL))
    found = study.summary()
    assert found["dips"]["zeroed"] < 0.05 < found["dips@1"]["zeroed"]
    assert found["dips@1"]["length"] < found["dips"]["length"]
    assert 0 < found["dips"]["negated"] < found["dips"]["preserved"]
    steps = [moment.step for moment in study.moments]
    assert steps == list(range(SIZE + 1, max(LENGTHS)))
    users = [sum(length > t for length in LENGTHS) for t in steps]
    assert [moment.users for moment in study.moments] == users


def test_training_goes_on_between_the_steps() -> None:
    """Also where no gradient is looked at: parameters move at every step."""
    moving = {"policy_lr": 0.02, "learning_rate": 0.02}
    every = _study(CONFIG.but(**moving)).moments
    assert every != _study(CONFIG.but(**STILL)).moments
    some = _study(CONFIG.but(**moving), steps=4).moments
    assert len(some) == 4
    assert all(moment in every for moment in some)


def test_rates_belong_to_one_update_a_step() -> None:
    """Of a run at stretch 1 its own, else the paper's; in proportion to the users."""
    for stretch in (0, 4):
        found = _study(CONFIG.but(stretch=stretch, learning_rate=0.5), steps=1).about["rates"]
        assert found["learning_rate"] == pytest.approx(2e-5 * 5 / 256)
        assert found["policy_lr"] == pytest.approx(2e-4 * 5 / 256)
    own = CONFIG.but(learning_rate=0.5, weight_decay=0.1)
    for users, share in ((0, 2 / 6), (4, 2 / 4)):
        found = _study(own.but(users=users), users=2, steps=1).about["rates"]
        assert found["learning_rate"] == pytest.approx(0.5 * share)


def test_the_seed_draws_users_and_steps() -> None:
    one, other = _study(users=3, steps=4, seed=1), _study(users=3, steps=4, seed=2)
    assert one == _study(users=3, steps=4, seed=1)
    assert one.moments != other.moments
    assert one.about["users"] == 3


def test_implicit_data_and_batches() -> None:
    config = CONFIG.but(every=3, inner_lr=0.2, **STILL)
    data = random_world(LENGTHS, items=9, seed=2, explicit=False)
    study = study_gradients(_bundle(config, data), config, data, **PAPER_RUN)
    assert [moment.step for moment in study.moments] == list(range(SIZE + 3, max(LENGTHS)))
    assert study.moments[2].kept["dips"].shares()["preserved"] == 1.0  # the first sketch predicts
    assert study.summary()["dips"]["preserved"] < 1.0


def test_the_run_is_left_as_it_was() -> None:
    data = random_world(LENGTHS, items=9, seed=2)
    trained = _bundle(CONFIG, data)
    before = [value.clone() for value in trained.recommender.parameters()]
    study_gradients(trained, CONFIG.but(learning_rate=0.1), data, **PAPER_RUN)
    for old, new in zip(before, trained.recommender.parameters(), strict=True):
        assert torch.equal(old, new)
    assert np.array_equal(data.lengths, LENGTHS)


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [("last", "'last' has no gradient to study"), ("learned", "'learned' asks the recommender")],
)
def test_other_policies_are_refused(policy: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _study(CONFIG.but(policy=policy))


@pytest.mark.parametrize("name", ["users", "steps", "queue"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0: it must be at least 1"):
        _study(**{name: 0})


def test_histories_that_are_too_short_are_refused() -> None:
    with pytest.raises(ConfigError, match="longest is 3"):
        _study(longest=3)
    data = random_world([3, 2, 1], items=9)
    with pytest.raises(DataError, match="no user has more than 3 interactions"):
        study_gradients(_bundle(CONFIG, data), CONFIG, data, **PAPER_RUN)


def test_divergence_is_told() -> None:
    with pytest.raises(TrainingDiverged, match="no longer a number"):
        _study(CONFIG.but(learning_rate=1e30))
