"""Nothing of the test users enters training: scramble them, and every parameter is the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dips.data.interactions import Categories, EventColumn, Interactions, from_arrays, ragged
from dips.studies.checks import data_summary, recommender_spec, resolved, split
from dips.studies.run import train_runs
from dips.training.config import TrainConfig

USERS, ITEMS, EVENTS = 30, 24, 12
SETTINGS = {"epochs": 3, "patience": 3, "dim": 4, "size": 3, "batch_size": 64, "device": "cpu"}
SIDES = ("price", "weather", "time", "categories")


def made_data(*, explicit: bool = True, repeats: bool = True) -> Interactions:
    """Return random interactions with a price, the weather, times and categories."""
    rng = np.random.default_rng(0)
    total = USERS * EVENTS
    item = rng.integers(0, ITEMS, total)
    if not repeats:
        item = np.concatenate([rng.permutation(ITEMS)[:EVENTS] for _ in range(USERS)])
    item[0] = ITEMS - 1  # the vocabulary ends with the last item
    side = {
        "price": EventColumn.of(rng.normal(10.0, 2.0, total)),
        "weather": EventColumn.of(rng.choice(["fog", "rain", "sun"], total)),
    }
    return from_arrays(
        np.repeat(np.arange(USERS), EVENTS),
        item,
        rng.integers(2, 5, total) if explicit else None,
        np.sort(rng.integers(0, 10**6, total)),
        categories=Categories.of([[f"group {number % 3}"] for number in range(ITEMS)]),
        side=side,
    )


def scrambled(data: Interactions, test: Interactions) -> Interactions:
    """Return the data with other items, ratings, times and side columns of the test users."""
    rng = np.random.default_rng(1)
    rows = ragged(test.starts, test.lengths)
    item, time = data.item.copy(), data.time.copy()
    item[rows] = rng.permutation(ITEMS)[item[rows]]
    time[rows] = np.sort(rng.integers(10**8, 10**9, (test.users, EVENTS)), axis=1).ravel()
    price = data.side["price"].values.copy()
    price[rows] = rng.normal(-500.0, 90.0, len(rows))
    weather = np.array(list(data.side["weather"].names))[data.side["weather"].values].astype("<U9")
    weather[rows] = rng.choice(["drizzle", "hail", "snow"], len(rows))
    rating, about = data.rating, dict(data.about)
    if rating is not None:
        rating = rating.copy()
        rating[rows] = rng.choice([0.5, 1.0, 3.0, 9.0], len(rows))
        about["rating_range"] = (0.5, 9.0)
    side = {"price": EventColumn.of(price), "weather": EventColumn.of(weather)}
    return replace(data, item=item, rating=rating, time=time, side=side, about=about)


def parameters(data: Interactions, users: tuple[Interactions, ...], settings: dict) -> dict:
    """Train and return all parameters of recommender and policy, with the resolved settings."""
    parts = tuple(
        replace(
            data, starts=part.starts, lengths=part.lengths, warmup=part.warmup,
            user_rows=part.user_rows,
        )
        for part in users
    )  # fmt: skip
    config = TrainConfig.of(**{**SETTINGS, **settings})
    result = train_runs([(parts, config)], test=False)[0]
    found = {f"recommender.{n}": v for n, v in result.trained.recommender.state_dict().items()}
    if isinstance(result.trained.policy, torch.nn.Module):
        found |= {f"policy.{n}": v for n, v in result.trained.policy.state_dict().items()}
    return {**found, "history": result.history, "resolved": result.resolved}


EXPLICIT = {
    "last": {"policy": "last"},
    "last, mlp": {"policy": "last", "recommender": "mlp"},
    "hardest": {"policy": "hardest:8", "side": SIDES},
    "influence": {"policy": "influence"},
    "dips": {"policy": "dips", "side": SIDES},
    "learned": {"policy": "learned", "baselines": ()},
    "learned, side": {"policy": "learned", "side": SIDES, "baselines": ()},
    "learned, mlp, side": {
        "policy": "learned", "side": SIDES, "recommender": "mlp", "baselines": (),
    },
    "bce": {"policy": "last", "loss": "bce"},
    "cce": {"policy": "learned", "loss": "cce", "baselines": ()},
}  # fmt: skip
IMPLICIT = {
    "last": {"policy": "last"},
    "learned": {"policy": "learned", "baselines": ()},
    "learned, side": {"policy": "learned", "side": SIDES, "baselines": ()},
    "dips, bpr": {"policy": "dips", "loss": "bpr", "negatives": 5},
    "sampled softmax": {"policy": "last", "negatives": 5},
    "gru, spectral start": {"policy": "last", "recommender": "gru"},
}


def assert_same_training(data: Interactions, settings: dict) -> None:
    """Train twice, the second time with scrambled test users, and compare bit by bit."""
    users = split(data, TrainConfig.of(**{**SETTINGS, **settings}))
    before = parameters(data, users, settings)
    after = parameters(scrambled(data, users[2]), users, settings)
    assert before.pop("history") == after.pop("history")
    assert before.pop("resolved") == after.pop("resolved")
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


@pytest.mark.parametrize("case", list(EXPLICIT))
def test_test_users_do_not_change_training_on_ratings(case):
    assert_same_training(made_data(), EXPLICIT[case])


@pytest.mark.parametrize("repeats", [True, False], ids=["repeats", "no repeats"])
@pytest.mark.parametrize("case", list(IMPLICIT))
def test_test_users_do_not_change_training_on_clicks(case, repeats):
    assert_same_training(made_data(explicit=False, repeats=repeats), IMPLICIT[case])


def test_ranges_stars_and_counts_of_items_come_from_training_users():
    """The rating range, the values of `cce` and the items of default rules know no other user."""
    data, config = made_data(), TrainConfig.of(**SETTINGS, loss="cce")
    train, _, test = split(data, config)
    rating, item = data.rating.copy(), data.item.copy()
    rows = ragged(test.starts, test.lengths)
    rating[rows], item[rows] = 9.0, np.arange(len(rows)) % ITEMS
    item[ragged(train.starts, train.lengths)] //= 2
    changed = replace(train, rating=rating, item=item, about={"rating_range": (0.0, 9.0)})
    spec = recommender_spec(changed, resolved(changed, config))
    assert (spec.low, spec.high, spec.rating_values) == (2.0, 4.0, (2.0, 3.0, 4.0))
    assert spec.items == ITEMS
    assert data_summary(changed, config).items <= ITEMS // 2


def test_runs_with_other_training_users_have_their_own_side_information():
    """Two splits are two encodings: stacked or not, a run has the statistics of its users."""
    data = made_data()
    configs = [
        TrainConfig.of(**SETTINGS, policy="dips", side=("price", "time"), seed=s) for s in (0, 1)
    ]
    jobs = [(split(data, config), config) for config in configs]
    together = train_runs(jobs)
    centers = [result.trained.side.columns[0].center for result in together]
    assert centers[0] != centers[1]
    for job, result in zip(jobs, together, strict=True):
        alone = train_runs([job])[0]
        assert alone.trained.side == result.trained.side
        assert alone.test.metrics == result.test.metrics


def test_each_run_clamps_to_the_range_of_its_own_training_users():
    """In a stack of two splits, predictions of one are not clamped to the range of the other."""
    data = made_data()
    configs = [TrainConfig.of(**SETTINGS, policy="last", seed=seed) for seed in (0, 1)]
    parts = [split(data, config) for config in configs]
    only_second = np.setdiff1d(parts[1][0].user_rows, parts[0][0].user_rows)
    rating = data.rating.copy()
    rating[data.starts[only_second[0]]] = 60.0
    jobs = [
        (tuple(replace(part, rating=rating) for part in users), config)
        for users, config in zip(parts, configs, strict=True)
    ]
    together = train_runs(jobs)
    assert [result.trained.spec.high for result in together] == [4.0, 60.0]
    for job, result in zip(jobs, together, strict=True):
        alone = train_runs([job])[0]
        assert alone.test.metrics == pytest.approx(result.test.metrics, abs=1e-5)
