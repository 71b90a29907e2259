"""The unit of ratings does not matter: decisions are the same, and errors have the new unit."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from dips.data.interactions import Interactions
from dips.data.synthetic import stream
from dips.evaluation.story import explain_user
from dips.serve.keeper import open_keeper
from dips.studies.checks import policy_spec, rating_scale, recommender_spec, resolved, split
from dips.studies.result import RunResult
from dips.studies.run import train_runs
from dips.studies.sketches import prediction_columns, sketch_columns
from dips.training.config import TrainConfig

DATA = stream(users=24, items=64, events=10)
SETTINGS = {"epochs": 2, "dim": 4, "size": 3, "batch_size": 128, "baselines": (), "device": "cpu"}
POLICIES = ("last", "hardest", "hardest:8", "influence", "dips", "learned")
BOTH = pytest.mark.parametrize("recommender", ["dot", "mlp"])
SLOW = {("influence", "mlp")}
"""Combinations without a closed form; they are for the exhaustive tests."""
ALL = pytest.mark.parametrize(
    ("policy", "recommender"),
    [
        pytest.param(*pair, marks=[pytest.mark.exhaustive] if pair in SLOW else [])
        for pair in itertools.product(POLICIES, ("dot", "mlp"))
    ],
)


def in_unit(scale: float, shift: float = 0.0) -> Interactions:
    """Return the data with ratings scale * rating + shift."""
    rating = (scale * DATA.rating.astype(np.float64) + shift).astype(np.float32)
    scaled = {**DATA.about, "rating_range": (float(rating.min()), float(rating.max()))}
    return replace(DATA, rating=rating, about=scaled)


@cache
def trained(policy: str, recommender: str, scale: float, shift: float = 0.0, **more) -> RunResult:
    """Return a run on ratings in another unit."""
    settings = {**SETTINGS, "policy": policy, "recommender": recommender, **more}
    config = TrainConfig.of(**settings)
    return train_runs([(split(in_unit(scale, shift), config), config)])[0]


def kept_by_keeper(result: RunResult) -> dict[str, list[int]]:
    """Return the sketches that a keeper has after the events of all users."""
    rating, owner = result.parts[0].rating.tolist(), np.repeat(np.arange(DATA.users), DATA.lengths)
    names = [DATA.user_id(user) for user in range(DATA.users)]
    events = [
        {"user": names[user], "item": DATA.item_ids[int(item)], "rating": value, "time": int(time)}
        for user, item, value, time in zip(owner, DATA.item, rating, DATA.time, strict=True)
    ]
    with open_keeper(result.trained, "memory:") as keeper:
        keeper.observe_many(events)
        return {name: [e.position for e in keeper.sketch(name).entries] for name in names}


def final_sketches(result: RunResult) -> dict[str, list[int]]:
    """Return the positions that each user's last sketch holds."""
    found: dict[str, list[int]] = {}
    rows = sketch_columns(result.trained, replace(DATA, rating=result.parts[0].rating))
    for user, position in zip(rows["user"], rows["position"].tolist(), strict=True):
        found.setdefault(user, []).append(position)
    return found


@ALL
def test_doubled_ratings_change_no_decision_and_double_the_error(policy, recommender):
    """A power of two is exact, so everything is compared bit by bit."""
    one, two = (trained(policy, recommender, scale) for scale in (1.0, 2.0))
    assert two.test.metrics["rmse"] == 2 * one.test.metrics["rmse"]
    assert two.valid["rmse"] == 2 * one.valid["rmse"]
    for line, doubled in zip(one.history, two.history, strict=True):
        assert doubled["train_loss"] == 4 * line["train_loss"]
    for name in ("recommender", "policy"):
        module = getattr(two.trained, name)
        if isinstance(module, torch.nn.Module):
            for key, value in getattr(one.trained, name).named_parameters():
                assert torch.equal(value, module.get_parameter(key)), key
    before, after = (sketch_columns(run.trained, run.parts[2], at="each") for run in (one, two))
    for name in ("user", "t", "position", "item"):
        assert np.array_equal(before[name], after[name])
    assert np.array_equal(before["score"], after["score"], equal_nan=True)
    assert np.array_equal(2 * before["rating"], after["rating"])
    before, after = (prediction_columns(run.trained, run.parts[2]) for run in (one, two))
    assert np.array_equal(2 * before["prediction"], after["prediction"])


@ALL
def test_the_keeper_decides_as_the_rollout_in_any_unit(policy, recommender):
    one, two = (trained(policy, recommender, scale) for scale in (1.0, 2.0))
    assert kept_by_keeper(one) == final_sketches(one)
    assert kept_by_keeper(two) == kept_by_keeper(one)
    scores = []
    for run, rating in ((one, 2.0), (two, 4.0)):
        with open_keeper(run.trained, "memory:") as keeper:
            keeper.observe("ada", DATA.item_ids[3], rating=rating, time=1)
            scores.append(keeper.recommend("ada", 3))
    assert [(item, 2 * score) for item, score in scores[0]] == scores[1]


@BOTH
@pytest.mark.parametrize("policy", ["last", "hardest", "hardest:8", "learned"])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 100.0), (0.1, 0.0)])
def test_other_units_change_results_up_to_rounding(policy, recommender, scale, shift):
    """`dips` is not here, because it reads ratings that are not centred."""
    one, other = trained(policy, recommender, 1.0), trained(policy, recommender, scale, shift)
    rmse = scale * one.test.metrics["rmse"]
    assert other.test.metrics["rmse"] == pytest.approx(rmse, rel=1e-4)
    before, after = final_sketches(one), final_sketches(other)
    same = [before[user] == after[user] for user in before]
    assert np.mean(same) >= 0.95


def test_the_papers_network_is_not_changed_by_a_factor():
    """It reads ratings divided by their spread."""
    one, other = trained("dips", "dot", 1.0), trained("dips", "dot", 0.1)
    assert other.test.metrics["rmse"] == pytest.approx(0.1 * one.test.metrics["rmse"], rel=1e-4)


@pytest.mark.parametrize("loss", ["bce", "cce"])
@pytest.mark.parametrize("policy", ["hardest", "learned"])
def test_losses_of_logits_do_not_depend_on_the_unit(policy, loss):
    one, two, shifted = (
        trained(policy, "dot", *unit, loss=loss) for unit in ((1.0,), (2.0,), (1.0, 100.0))
    )
    assert final_sketches(one) == final_sketches(two) == final_sketches(shifted)
    unit = {"rmse": 2.0 if loss == "cce" else 1.0}
    for name, value in one.test.metrics.items():
        assert two.test.metrics[name] == unit.get(name, 1.0) * value
        assert shifted.test.metrics[name] == pytest.approx(value, rel=1e-4)


def test_stories_are_in_the_unit_of_the_data():
    one, two = (trained("learned", "dot", scale) for scale in (1.0, 2.0))
    told = [explain_user(run.trained, run.parts[2], 0, part="test") for run in (one, two)]
    for step, doubled in zip(told[0].steps, told[1].steps, strict=True):
        assert doubled.estimate == 2 * step.estimate
        assert doubled.error == 2 * step.error
        gradients = [4 * entry.entry_gradient for entry in step.kept]
        assert [entry.entry_gradient for entry in doubled.kept] == pytest.approx(gradients)


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_ratings_have_spread_one(policy):
    result = trained(policy, "dot", 0.0, 3.0)
    assert (result.trained.spec.rating_center, result.trained.spec.rating_spread) == (3.0, 1.0)
    assert not result.error
    assert result.test.metrics["rmse"] == 0.0  # clamped to the range


def test_the_scale_comes_from_training_users():
    config = TrainConfig.of(**SETTINGS, policy="learned")
    train, valid, test = split(DATA, config)
    changed = DATA.rating.copy()
    for part in (valid, test):
        changed[part.event_rows] = 77.0
    assert rating_scale(replace(train, rating=changed)) == rating_scale(train)
    center, spread = rating_scale(train)
    ratings = train.rating[train.event_rows].astype(np.float64)
    assert (center, spread) == (ratings.mean(), ratings.std())
    config = resolved(train, config)
    made, policy = recommender_spec(train, config), policy_spec(train, config)
    assert (made.rating_center, made.rating_spread) == (policy.center, policy.spread)
