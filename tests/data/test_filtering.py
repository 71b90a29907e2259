from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dips.data import filtering
from dips.data.catalog import open_data
from dips.data.interactions import Categories, Strings, from_arrays
from dips.errors import ConfigError, DataError

PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=60)


def naive_core(events, k):
    """Remove one user or item at a time, counting distinct pairs: the oracle of k-core."""
    while True:
        items, users = defaultdict(set), defaultdict(set)
        for user, item in events:
            items[user].add(item)
            users[item].add(user)
        bad = [("u", user) for user in items if len(items[user]) < k]
        bad += [("i", item) for item in users if len(users[item]) < k]
        if not bad:
            return events
        kind, offender = bad[0]
        events = [event for event in events if event["ui".index(kind)] != offender]


@given(events=PAIRS, k=st.integers(1, 3))
def test_k_core_agrees_with_removing_one_at_a_time(events, k):
    data = from_arrays(*zip(*events, strict=True))
    expected = naive_core(events, k)
    if not expected:
        with pytest.raises(DataError, match=f"'{k}-core' removes every interaction"):
            filtering.k_core(data, k)
        return
    core = filtering.k_core(data, k)
    found = [
        (int(core.user_id(user)), int(core.item_ids[int(item)]))
        for user in range(core.users)
        for item in core.item[core.events(user)]
    ]
    assert found == sorted(expected, key=lambda event: event[0])  # stable: the order is kept
    assert core.items == len({item for _, item in expected})


def test_repeats_do_not_count_twice():
    data = from_arrays([0, 0, 1, 1], [5, 5, 5, 6])
    with pytest.raises(DataError, match="use a weaker filter"):
        filtering.k_core(data, 2)


@pytest.fixture
def rated():
    return from_arrays(
        [0, 0, 0, 1, 1, 2],
        [0, 1, 2, 2, 3, 0],
        [3.5, 4.0, 5.0, 3.6, 1.0, 2.0],
        [1, 2, 3, 4, 5, 6],
        user_ids=["a", "b", "c"],
        item_ids=["w", "x", "y", "z"],
        titles=Strings.of(["W", "X", "Ÿ", "Z"]),
        categories=Categories.of([["q"], [], ["p", "q"], ["r"]]),
        about={"name": "toy"},
    )


def test_min_rating_is_strict_and_leaves_implicit_data(rated, events):
    kept = filtering.min_rating(rated, 3.5)
    assert events(kept) == {"a": [("x", 2), ("y", 3)], "b": [("y", 4)]}
    assert kept.rating is None
    assert "rating_range" not in kept.about
    assert kept.about["steps"] == ["rating > 3.5"]
    with pytest.raises(DataError, match="toy has no ratings"):
        filtering.min_rating(kept, 3.5)


def test_vocabularies_shrink_to_what_is_left(rated):
    kept = filtering.min_rating(rated, 3.5)
    assert list(kept.user_ids) == ["a", "b"]
    assert list(kept.item_ids) == ["x", "y"]
    assert list(kept.titles) == ["X", "Ÿ"]
    assert [kept.categories[item] for item in (0, 1)] == [[], ["p", "q"]]


def test_min_events(rated, events):
    assert list(events(filtering.min_events(rated, 2))) == ["a", "b"]
    with pytest.raises(DataError, match=r"toy: 'users with 9\+ interactions' removes every"):
        filtering.min_events(rated, 9)


def test_a_recipe_comes_before_single_filters(rated):
    data = filtering.prepare(rated, recipe="as-is", min_rating=3.5, core=1)
    assert data.about["recipe"] == "as-is"
    assert data.about["steps"] == ["rating > 3.5", "1-core"]
    with pytest.raises(ConfigError, match="unknown recipe 'x': choose one of as-is, netflix"):
        filtering.prepare(rated, recipe="x")
    with pytest.raises(ConfigError, match="a 0-core does not exist"):
        filtering.prepare(rated, core=0)


def test_parts_by_users_can_be_filtered_and_parts_by_time_not(rated, events):
    part = rated.select([2, 0])
    assert events(filtering.min_events(part, 1)) == {
        "c": [("w", 2.0, 6)],
        "a": [("w", 3.5, 1), ("x", 4.0, 2), ("y", 5.0, 3)],
    }
    from dips.data.splitting import by_time

    late = by_time(rated.select([0, 1]), (0.5, 0.25, 0.25))[2]
    with pytest.raises(DataError, match="filter before the split by time"):
        filtering.k_core(late, 1)


def test_compact_does_not_change_a_whole_dataset(rated):
    assert filtering.compact(rated) is rated
    assert len(filtering.compact(rated.select([1])).item) == 2
    assert np.array_equal(filtering.compact(rated.select([1, 0])).lengths, [2, 3])


def test_the_paper_s_numbers_on_movielens_1m(real_data):
    data = filtering.prepare(open_data(str(real_data / "ml-1m.parquet")), recipe="implicit")
    assert (data.users, data.items, len(data)) == (5_148, 2_380, 553_277)
    assert not data.explicit
