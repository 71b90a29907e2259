"""The interval over splits is the paired t-interval of the splits that both policies have."""

import math

import pytest
import split_interval
from scipy import stats


def rows(policy, values, size=4, every=1):
    return [
        {"policy": policy, "size": size, "every": every, "seed": seed, "test_rmse": value}
        for seed, value in values.items()
    ]


def test_the_interval_is_that_of_a_paired_t_test_over_common_splits():
    last, learned = {0: 0.92, 1: 0.95, 2: 0.90, 3: 7.0}, {2: 0.89, 1: 0.93, 0: 0.915, 9: 7.0}
    table = [*rows("last", last), *rows("learned", learned), *rows("last", {0: 5.0}, size=8)]
    found = split_interval.over_splits(table, "last", "learned", (1, 4), "rmse")
    expected = stats.ttest_rel([0.92, 0.95, 0.90], [0.915, 0.93, 0.89]).confidence_interval(0.95)
    assert found.mean - found.half_width == pytest.approx(expected.low)
    assert found.mean + found.half_width == pytest.approx(expected.high)
    assert found.excludes_zero == (expected.low * expected.high > 0)


def test_one_common_split_gives_no_interval():
    table = [*rows("last", {0: 0.92}), *rows("learned", {0: 0.91, 1: 0.90})]
    found = split_interval.over_splits(table, "last", "learned", (1, 4), "rmse")
    assert found.mean == pytest.approx(0.01)
    assert math.isinf(found.half_width)
    assert not found.excludes_zero
