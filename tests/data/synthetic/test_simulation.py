"""The synthetic stream: reproducible per user, with the properties that its docstring lists."""

import tracemalloc

import numpy as np
import pytest

from dips.data.interactions import Interactions
from dips.data.synthetic import stream
from dips.errors import ConfigError


def columns(data: Interactions, users: int) -> list[np.ndarray]:
    end = int(data.starts[users - 1] + data.lengths[users - 1])
    found = [data.item[:end], data.time[:end], data.lengths[:users]]
    return found if data.rating is None else [*found, data.rating[:end]]


def same(a: Interactions, b: Interactions, users: int) -> bool:
    pairs = zip(columns(a, users), columns(b, users), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def items_in(data: Interactions, category: str) -> np.ndarray:
    return np.array([category in data.categories[item] for item in range(data.items)])


def lagged_products(data: Interactions, value: np.ndarray, low: int, high: int) -> float:
    """Mean product of a user's values at positions `low` to `high` apart; NaN is no value."""
    total = count = 0.0
    for user in range(data.users):
        mine = value[data.events(user)]
        at = np.flatnonzero(~np.isnan(mine))
        lag = at[:, None] - at[None, :]
        near = (lag >= low) & (lag <= high)
        total += float(np.outer(mine[at], mine[at])[near].sum())
        count += int(near.sum())
    return total / count


def opinions(data: Interactions, kind: str, sign_of: str) -> np.ndarray:
    """Each rating of this kind above its item's mean, turned so that `sign_of` items count plus."""
    mean = np.bincount(data.item, data.rating, data.items) / np.maximum(
        np.bincount(data.item, minlength=data.items), 1
    )
    sign = np.where(items_in(data, sign_of), 1.0, -1.0)
    value = (data.rating - mean[data.item]) * sign[data.item]
    return np.where(items_in(data, kind)[data.item], value, np.nan)


@pytest.mark.parametrize("implicit", [False, True])
def test_a_user_does_not_depend_on_other_users_or_chunks(implicit):
    few = stream(users=100, events=30, implicit=implicit)
    assert same(few, stream(users=100, events=30, implicit=implicit), 100)
    assert same(few, stream(users=5000, events=30, implicit=implicit), 100)
    assert same(few, stream(users=5, events=30, implicit=implicit, chunk=1), 5)
    for chunk in (13, 64):
        assert same(few, stream(users=100, events=30, implicit=implicit, chunk=chunk), 100)


def test_seeds_differ():
    assert not same(stream(users=20, seed=0), stream(users=20, seed=1), 20)


def test_columns_are_in_order_and_in_range():
    data = stream(users=300)
    assert data.item.dtype == np.int32
    assert data.rating.dtype == np.float32
    assert data.item.min() >= 0
    assert data.item.max() < data.items
    assert set(np.unique(data.rating)) == set(np.arange(1.0, 5.5, 0.5))
    inside = np.ones(len(data) - 1, bool)
    inside[data.starts[1:] - 1] = False
    gaps = np.diff(data.time)[inside]
    assert gaps.min() == 0
    assert 0.1 < (gaps == 0).mean() < 0.5  # ties
    assert 0.1 < (gaps > 3600).mean() < 0.3  # sessions
    assert len(data.titles) == data.items


def test_lengths_vary_around_the_mean():
    lengths = stream(users=3000, events=60).lengths
    assert lengths.min() >= 15
    assert lengths.mean() == pytest.approx(60, rel=0.05)
    assert lengths.max() > 150


def test_popularity_has_a_tail():
    counts = np.sort(np.bincount(stream(users=1000).item, minlength=800))[::-1]
    assert counts[:80].sum() > 0.3 * counts.sum()
    assert counts[400:].sum() < 0.3 * counts.sum()
    assert (counts > 0).mean() > 0.95


def test_ratings_are_given_once_but_implicit_events_repeat():
    def repeated(data: Interactions) -> float:
        fresh = sum(len(np.unique(data.item[data.events(user)])) for user in range(data.users))
        return 1.0 - fresh / len(data)

    assert repeated(stream(users=300)) < 0.04
    assert repeated(stream(users=300, implicit=True)) > 0.2


def test_favourites_are_repeated_at_high_durability():
    shares = []
    for durability in (0.0, 1.0):
        data = stream(users=300, implicit=True, durability=durability)
        late = np.arange(len(data)) - np.repeat(data.starts, data.lengths) >= 40
        shares.append(items_in(data, "cult")[data.item][late].mean())
    assert shares[0] < 0.1
    assert shares[1] > 0.35


def test_series_are_consumed_in_a_row():
    data = stream(users=500, durability=0.0)
    series = np.array([title.rsplit(", part", 1)[0] for title in data.titles])[data.item]
    again = (series[1:] == series[:-1]).mean()
    shuffled = np.random.default_rng(0).permutation(series)
    assert again > 3 * (shuffled[1:] == shuffled[:-1]).mean()


def test_durability_is_the_share_of_long_term_preference():
    """Opinions on cults of the first two opposite genres agree for ever, or not at all."""
    far = []
    for durability in (0.0, 0.5, 1.0):
        data = stream(users=400, durability=durability)
        value = opinions(data, "cult", "action")
        value[~(items_in(data, "action") | items_in(data, "science"))[data.item]] = np.nan
        far.append(lagged_products(data, value, 20, 60))
    assert abs(far[0]) < 0.05
    assert far[0] + 0.4 < far[1] < far[2] - 0.4


def test_drift_is_the_speed_of_short_term_interest():
    near, far = [], []
    for drift in (0.0, 0.5, 1.0):
        data = stream(users=400, durability=0.0, drift=drift)
        value = opinions(data, "mood piece", "light")
        near.append(lagged_products(data, value, 1, 3))
        far.append(lagged_products(data, value, 15, 25))
    assert far[0] == pytest.approx(near[0], rel=0.1)  # no drift: the mood never changes
    assert far[1] / near[1] < 0.6
    assert far[2] / near[2] < far[1] / near[1] - 0.15


def test_hits_are_rated_alike_by_all_users():
    data = stream(users=400)
    hit = items_in(data, "hit")
    mean = np.bincount(data.item, data.rating, data.items) / np.bincount(data.item)
    spread = (data.rating - mean[data.item])[hit[data.item]].std()
    assert spread < 0.5
    assert (data.rating - mean[data.item])[items_in(data, "cult")[data.item]].std() > 0.8


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize(
    "options", [{"users": 1}, {"items": 64}, {"events": 4}, {"items": 20_000, "users": 3}]
)
def test_extreme_sizes(options, implicit):
    data = stream(**{"users": 20, **options}, implicit=implicit)
    assert data.users == options.get("users", 20)
    assert data.lengths.min() >= 1
    assert data.item.max() < data.items == options.get("items", 800)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"durability": 1.1}, "durability is 1.1: it goes from 0 to 1"),
        ({"drift": -0.1}, "drift is -0.1: it goes from 0 to 1"),
        ({"drift": float("nan")}, "drift is nan: it goes from 0 to 1"),
        ({"users": 0}, "users is 0: a synthetic stream needs at least 1"),
        ({"items": 1}, "items is 1: a synthetic stream needs at least 64"),
        ({"events": 3}, "events is 3: a synthetic stream needs at least 4"),
        ({"seed": -1}, "seed is -1: a synthetic stream needs at least 0"),
        ({"chunk": 0}, "chunk is 0: a synthetic stream needs at least 1"),
    ],
)
def test_invalid_options_are_named(options, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        stream(**options)


def test_memory_is_bounded_by_the_chunk():
    def peak(chunk: int) -> float:
        tracemalloc.start()
        data = stream(users=1000, events=40, chunk=chunk)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most / (16 * len(data))

    assert peak(chunk=100) < 2.0
    assert peak(chunk=1000) > 3.0  # the measure sees a chunk


def test_without_repeats_every_event_is_the_first_of_its_item():
    kept, full = (stream(users=60, implicit=True, repeats=repeats) for repeats in (False, True))
    for user in range(60):
        items = full.item[full.events(user)].tolist()
        times = full.time[full.events(user)].tolist()
        first = [place for place, item in enumerate(items) if item not in items[:place]]
        assert kept.item[kept.events(user)].tolist() == [items[place] for place in first]
        assert kept.time[kept.events(user)].tolist() == [times[place] for place in first]


def test_ratings_have_the_step_the_mean_and_the_bias_that_were_asked_for():
    coarse = stream(users=200, rating_step=2.0)
    assert set(coarse.rating.tolist()) == {1.0, 3.0, 5.0}
    low, high = (stream(users=200, mean_rating=mean).rating.mean() for mean in (2.5, 4.0))
    assert low < high - 1
    means = {
        bias: np.std([data.rating[data.events(user)].mean() for user in range(200)])
        for bias in (0.0, 1.0)
        for data in [stream(users=200, user_bias=bias)]
    }
    assert means[1.0] > means[0.0] + 0.3
    quiet, loud = (stream(users=200, noise=noise).rating.std() for noise in (0.1, 1.5))
    assert quiet < loud
