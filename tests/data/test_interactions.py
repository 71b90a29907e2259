import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dips.data.interactions import Categories, Strings, from_arrays, ragged
from dips.errors import DataError

TEXTS = st.lists(st.text(max_size=3), max_size=6)


@given(values=TEXTS)
def test_strings_round_trip(values):
    strings = Strings.of(values)
    assert list(strings) == values
    assert [strings[row] for row in range(len(strings))] == values


@given(values=TEXTS.filter(len), data=st.data())
def test_strings_take_rows(values, data):
    rows = data.draw(st.lists(st.integers(0, len(values) - 1)))
    taken = Strings.of(values).take(np.array(rows, np.int64))
    assert list(taken) == [values[row] for row in rows]


def test_categories_take_rows():
    taken = Categories.of([["b", "a"], [], ["c"]]).take(np.array([2, 0]))
    assert [taken[item] for item in (0, 1)] == [["c"], ["b", "a"]]


def test_ragged_concatenates_ranges():
    assert ragged(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]


EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(-3, 3)), min_size=1, max_size=30
)


@pytest.mark.parametrize("scale", [1, 2**61], ids=["one key", "two keys"])
@given(events=EVENTS)
def test_events_are_sorted_by_user_and_time_and_ties_keep_their_order(events, scale):
    users, items, times = zip(*events, strict=True)
    data = from_arrays(users, items, items, np.array(times) * scale)
    expected = sorted(events, key=lambda event: (event[0], event[2]))  # sorted() is stable
    assert data.item.tolist() == [item for _, item, _ in expected]
    assert data.rating.tolist() == [item for _, item, _ in expected]
    assert data.time.tolist() == [time * scale for _, _, time in expected]
    assert data.user_rows.tolist() == sorted(set(users))
    assert [data.item[data.events(user)].tolist() for user in range(data.users)] == [
        [item for owner, item, _ in expected if owner == user] for user in sorted(set(users))
    ]


def test_narrow_columns_are_widened_and_units_become_seconds():
    data = from_arrays(
        np.array([1, 0], np.int32), np.array([0, 1], np.int16), np.array([5, 3], np.uint8),
        np.array([2, 30_000], np.int16), seconds=86_400,
    )  # fmt: skip
    assert (data.item.dtype, data.rating.dtype, data.time.dtype) == ("int32", "float32", "int64")
    assert data.time.tolist() == [30_000 * 86_400, 2 * 86_400]


def test_bad_columns_are_refused():
    with pytest.raises(DataError, match="there are no interactions"):
        from_arrays([], [])
    with pytest.raises(DataError, match="there is a negative one"):
        from_arrays([0, 1], [0, -1])


def test_repeats_are_counted_per_user():
    data = from_arrays([0, 0, 0, 0, 1, 1], [3, 3, 1, 3, 3, 0])
    assert data.repeats == pytest.approx(2 / 6)
    assert data.select([1]).repeats == 0


def test_find_user():
    data = from_arrays([0, 1], [0, 0], user_ids=["a", "b"])
    assert data.find_user("b") == 1
    for absent in ("c", "a"):
        with pytest.raises(DataError, match=f"there is no user '{absent}'"):
            data.select([1]).find_user(absent)
