"""Splits by users and by time: complete, disjoint and reproducible."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dips.data.interactions import from_arrays
from dips.data.splitting import FOLDS, FRACTIONS, by_date, by_fold, by_time, by_users
from dips.errors import ConfigError, DataError


def users_with(*lengths):
    user = np.repeat(np.arange(len(lengths)), lengths)
    return from_arrays(user, np.zeros_like(user))


def test_each_user_is_in_one_part_and_the_seed_decides():
    data = users_with(*[2] * 10)
    parts = by_users(data, (0.6, 0.2, 0.2), seed=3)
    assert [part.users for part in parts] == [6, 2, 2]
    assert sorted(np.concatenate([part.user_rows for part in parts])) == list(range(10))
    again, other = (by_users(data, (0.6, 0.2, 0.2), seed=seed)[0] for seed in (3, 4))
    assert again.user_rows.tolist() == parts[0].user_rows.tolist() != other.user_rows.tolist()


def test_three_users_are_the_fewest():
    assert [part.users for part in by_users(users_with(1, 1, 1), (0.6, 0.2, 0.2), seed=0)] == [
        1
    ] * 3
    with pytest.raises(DataError, match="a split by users needs at least 3"):
        by_users(users_with(1, 1), (0.6, 0.2, 0.2), seed=0)


def rows(parts):
    return [part.user_rows.tolist() for part in parts]


@given(users=st.integers(5, 60), seed=st.integers(0, 1000))
def test_five_folds_test_and_validate_every_user_once(users, seed):
    data = users_with(*[1] * users)
    folds = [rows(by_fold(data, fold, seed=seed)) for fold in range(FOLDS)]
    for train, valid, test in folds:
        assert sorted(train + valid + test) == list(range(users))
        assert min(map(len, (train, valid, test))) > 0
    for part in (1, 2):
        assert sorted(user for fold in folds for user in fold[part]) == list(range(users))
    assert folds[0] == rows(by_users(data, FRACTIONS, seed=seed))


def test_folds_have_the_shares_of_the_paper():
    sizes = [
        [len(part) for part in rows(by_fold(users_with(*[1] * 100), f, seed=1))] for f in range(5)
    ]
    assert sizes == [[60, 20, 20]] * 5


def test_a_fold_that_does_not_exist_and_too_few_users_are_refused():
    data = users_with(1, 1, 1, 1)
    assert [part.users for part in by_fold(data, 0, seed=0)] == [2, 1, 1]
    with pytest.raises(
        DataError, match=r"has 4 users; 5 folds need at least 5 \(run the first fold"
    ):
        by_fold(data, 1, seed=0)
    for fold in (-1, 5):
        with pytest.raises(ConfigError, match=f"fold is {fold}: it must be between 0 and 4"):
            by_fold(users_with(*[1] * 9), fold, seed=0)


def test_windows_in_time_follow_each_other():
    train, valid, test = by_time(users_with(10, 5, 1), (0.6, 0.2, 0.2))
    windows = [
        list(zip(p.user_rows, p.warmup, p.lengths, strict=True)) for p in (train, valid, test)
    ]
    assert windows[0] == [(0, 0, 6), (1, 0, 3)]
    assert windows[1] == [(0, 6, 8), (1, 3, 4)]
    assert windows[2] == [(0, 8, 10), (1, 4, 5), (2, 0, 1)]


def test_short_histories_have_no_window():
    with pytest.raises(DataError, match="too short for a train part by time"):
        by_time(users_with(1, 1), (0.6, 0.2, 0.2))


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.6, 0.4, 0.0), (0.6, 0.6, 0.2)])
def test_invalid_fractions_are_refused(fractions):
    with pytest.raises(ConfigError, match="must be positive and sum to 1"):
        by_time(users_with(5), fractions)


@given(
    times=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=10, max_size=60),
)
def test_dates_divide_all_events(times):
    user, time = (np.array(column) for column in zip(*times, strict=True))
    data = from_arrays(user, np.arange(len(user)), time=time)
    ordered = np.sort(time)
    dates = [ordered[int(np.floor(share * len(time) + 1e-9))] for share in (0.6, 0.8)]
    assume(ordered[0] < dates[0] < dates[1])  # otherwise too many events share one time
    parts = by_date(data, FRACTIONS)
    windows = [(-1, dates[0]), (dates[0], dates[1]), (dates[1], 31)]
    for part, (low, high) in zip(parts, windows, strict=True):
        found = []
        for one in range(part.users):
            rows = part.events(one)
            found += data.time[rows][part.warmup[one] :].tolist()
            assert (data.time[rows][: part.warmup[one]] < low).all()  # they build the sketch
        assert sorted(found) == sorted(t for t in time.tolist() if low <= t < high)


def test_dates_need_times_and_events_between_them():
    with pytest.raises(DataError, match="has no times: split it by --split users"):
        by_date(users_with(5, 5), FRACTIONS)
    same = from_arrays([0, 0, 1, 1], [0, 1, 2, 3], time=[7, 7, 7, 7])
    with pytest.raises(DataError, match=r"too many events share one time.* use --split users"):
        by_date(same, FRACTIONS)
