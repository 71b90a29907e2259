"""Deviations over splits without what the splits do to all policies alike."""

import pytest

from dips.evaluation.split_deviation import within_splits


def test_variation_that_all_policies_share_is_removed() -> None:
    values = {"a": {0: 1.0, 1: 5.0, 2: 3.0}, "b": {0: 2.0, 1: 6.0, 2: 4.0}}
    assert within_splits(values) == pytest.approx({"a": 0.0, "b": 0.0})


def test_variation_of_a_single_policy_remains() -> None:
    values = {"a": {0: 1.0, 1: 3.0}, "b": {0: 3.0, 1: 1.0}}
    # centred: a is -1, +1 and b +1, -1: deviation sqrt(2), corrected by sqrt(2 / 1)
    assert within_splits(values) == pytest.approx({"a": 2.0, "b": 2.0})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"a": {0: 1.0}, "b": {0: 2.0}},
        {"a": {0: 1.0, 1: 2.0}},
        {"a": {0: 1.0, 1: 2.0}, "b": {0: 2.0}},
    ],
)
def test_incomplete_tables_have_no_deviation(
    values: dict[str, dict[int, float]],
) -> None:
    assert within_splits(values) == {}
