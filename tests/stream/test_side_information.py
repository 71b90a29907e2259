"""Side information end to end: data that depend on it, saved runs, stacked runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import dips
from dips.data.interactions import Categories, EventColumn, Interactions, from_arrays
from dips.data.synthetic import stream
from dips.errors import ConfigError
from dips.model.trained_model import open_model
from dips.studies.checks import split
from dips.studies.run import train_runs
from dips.studies.sketches import prediction_columns, sketch_columns
from dips.training.config import TrainConfig

SMALL: dict[str, Any] = {"epochs": 2, "dim": 6, "batch_size": 128, "device": "cpu"}
NOISE = 0.3


def _cold(users: int = 150, items: int = 400, length: int = 20) -> Interactions:
    """Return ratings that depend on the category only; each item occurs a few times."""
    rng = np.random.default_rng(0)
    kind, mean = rng.integers(6, size=items), rng.normal(size=6)
    item = rng.integers(items, size=users * length)
    rating = 3 + mean[kind[item]] + NOISE * rng.normal(size=len(item))
    return from_arrays(
        np.repeat(np.arange(users), length),
        item,
        rating.astype(np.float32),
        np.tile(60 * np.arange(length), users),
        item_ids=map(str, range(items)),
        categories=Categories.of([[f"kind {number}"] for number in kind]),
        about={"name": "cold"},
    )


def _informative(names: bool, users: int = 200, length: int = 24) -> Interactions:
    """Return ratings of which a quarter follow the user's sign; a column marks these."""
    rng = np.random.default_rng(0)
    user, count = np.repeat(np.arange(users), length), users * length
    informative = rng.random(count) < 0.25
    sign = rng.choice([-1.0, 1.0], size=users)[user]
    rating = 3 + 2 * np.where(informative, sign, rng.choice([-1.0, 1.0], size=count))
    return from_arrays(
        user,
        rng.integers(6, size=count),
        rating.astype(np.float32),
        np.tile(60 * np.arange(length), users),
        side={
            "informative": EventColumn.of(
                np.where(informative, "yes", "no") if names else informative
            )
        },
        about={"name": "informative"},
    )


def _with_columns(data: Interactions) -> Interactions:
    """Return synthetic interactions with two further columns."""
    rng = np.random.default_rng(1)
    return replace(data, side={
        "minutes": EventColumn.of(rng.exponential(30, len(data.item))),
        "device": EventColumn.of(rng.choice(["phone", "desk", "tv"], len(data.item))),
    })  # fmt: skip


EXPLICIT = _with_columns(stream(users=40, items=64, events=14))
IMPLICIT = _with_columns(stream(users=40, items=64, events=14, implicit=True))
ALL = ("categories", "time", "minutes", "device")


def test_cold_items_are_predicted_from_their_categories() -> None:
    train, valid, test = _cold().split_users(0.6, 0.2, 0.2, seed=0)
    rmse = {
        side: dips.train(
            train, valid, test, size=4, epochs=6, dim=8, batch_size=256, side=side, device="cpu"
        ).metrics()["test"]["rmse"]
        for side in ((), ("categories",))
    }
    assert rmse["categories",] < 1.25 * NOISE
    assert rmse[()] > 1.6 * NOISE


@pytest.mark.parametrize("names", [False, True], ids=["number", "name"])
def test_a_policy_learns_from_a_column(names: bool) -> None:
    train, valid, test = _informative(names).split_users(0.6, 0.2, 0.2, seed=0)
    settings = {**SMALL, "epochs": 8, "dim": 4, "batch_size": 512, "learning_rate": 0.03}
    settings |= {"policy": "learned", "size": 3, "policy_lr": 0.01, "policy_batch_size": 512}
    share = {}
    for side in ((), ("informative",)):
        model = dips.train(train, valid, side=side, **settings)
        kept = dips.sketches(model, test)
        place = {test.user_id(user): int(test.starts[user]) for user in range(test.users)}
        event = [place[user] + at for user, at in zip(kept["user"], kept["position"], strict=True)]
        share[side] = float(test.side["informative"].values[event].mean())
    assert share["informative",] > 0.95
    assert share[()] < 0.4


@pytest.mark.parametrize(
    ("policy", "form"),
    [("last", "mlp"), ("hardest", "dot"), ("learned", "dot"), ("dips", "dot")],
)
@pytest.mark.parametrize("data", [EXPLICIT, IMPLICIT], ids=["explicit", "implicit"])
def test_a_saved_run_opens_unchanged(
    policy: str, form: str, data: Interactions, tmp_path: Any
) -> None:
    config = TrainConfig.of(**SMALL, policy=policy, side=ALL, recommender=form)
    outcome = train_runs([(split(data, config), config)])[0]
    outcome.trained.save(tmp_path)
    again = open_model(tmp_path)
    assert again.side == outcome.trained.side
    test = outcome.parts[2]
    first, second = (prediction_columns(trained, test) for trained in (outcome.trained, again))
    for name, column in first.items():
        np.testing.assert_array_equal(column, second[name])
    one, other = (sketch_columns(trained, test) for trained in (outcome.trained, again))
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name])


def test_other_data_needs_the_columns_but_not_the_categories() -> None:
    config = TrainConfig.of(**SMALL, policy="learned", side=("categories", "device"))
    outcome = train_runs([(split(EXPLICIT, config), config)])[0]
    test = outcome.parts[2]
    plain = replace(test, categories=None)
    wanted = dips.evaluate(outcome, test)
    assert dips.evaluate(outcome, plain) == wanted
    # the same data with item ids in another order
    order = np.random.default_rng(0).permutation(test.items)
    moved = replace(
        plain,
        item=np.argsort(order)[test.item].astype(np.int32),
        item_ids=test.item_ids.take(order),
    )
    assert dips.evaluate(outcome, moved) == wanted
    with pytest.raises(ConfigError, match="'device': synthetic has no such column"):
        dips.evaluate(outcome, replace(test, side={}))


@pytest.mark.parametrize("policy", ["last", "learned", "dips"])
@pytest.mark.parametrize("data", [EXPLICIT, IMPLICIT], ids=["explicit", "implicit"])
def test_a_stacked_run_equals_the_single_run(policy: str, data: Interactions) -> None:
    configs = [TrainConfig.of(**SMALL, policy=policy, side=ALL, seed=seed) for seed in range(2)]
    jobs = [(split(data, config), config) for config in configs]
    for together, job in zip(train_runs(jobs), jobs, strict=True):
        (single,) = train_runs([job])
        assert together.valid == pytest.approx(single.valid, abs=1e-4)
        others = single.trained.recommender.state_dict()
        for name, value in together.trained.recommender.state_dict().items():
            torch.testing.assert_close(value, others[name], atol=1e-3, rtol=1e-2)


def test_runs_with_different_side_information_are_not_stacked() -> None:
    configs = [TrainConfig.of(**SMALL, side=side) for side in ((), ("time",), ("categories",))]
    outcomes = train_runs([(split(EXPLICIT, config), config) for config in configs])
    states = [set(outcome.trained.recommender.state_dict()) for outcome in outcomes]
    assert states[1] - states[0] == {"time_vector", "time_bias"}
    assert states[2] - states[0] == {"category_vectors", "category_bias", "categories"}


def test_a_trend_in_time_is_learned() -> None:
    """Ratings of all users rise with time."""
    rng = np.random.default_rng(0)
    users, length = 100, 20
    time = rng.integers(0, 10**7, users)[:, None] + 60 * np.arange(length)
    rating = 3 + 1.5 * (time / 10**7 - 0.5) + 0.1 * rng.normal(size=time.shape)
    data = from_arrays(
        np.repeat(np.arange(users), length),
        rng.integers(30, size=users * length),
        rating.astype(np.float32).ravel(),
        time.ravel(),
    )
    train, valid, test = data.split_users(0.6, 0.2, 0.2, seed=0)
    settings = {**SMALL, "epochs": 6, "size": 1, "learning_rate": 0.03}
    with_time, without = (
        dips.train(train, valid, test, side=side, **settings).metrics()["test"]["rmse"]
        for side in (("time",), ())
    )
    assert with_time < 0.15
    assert without > 1.3 * with_time


@pytest.mark.parametrize(
    ("side", "reason"),
    [(("mood",), "'mood': synthetic has no such column; it has minutes, device, categories, time")],
)
def test_unknown_names_are_refused(side: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        dips.train(*split(EXPLICIT, TrainConfig.of())[:2], side=side)
