"""Sizes at equal quality: between points, at points, and honestly beyond them."""

import math

import pytest

from dips.evaluation.equal_quality_size import EqualQualitySize, equal_quality_size


def test_halfway_between_two_points_is_their_geometric_mean() -> None:
    found = equal_quality_size([2, 4, 8], [0.1, 0.2, 0.3], 0.25)
    assert found.exact
    assert found.size == pytest.approx(math.sqrt(32))
    assert found.ratio(4) == pytest.approx(math.sqrt(2))
    assert str(found) == "5.66"


def test_the_quality_of_a_size_gives_that_size() -> None:
    assert equal_quality_size([2, 4, 8], [0.1, 0.2, 0.3], 0.2) == EqualQualitySize(4.0)
    assert equal_quality_size([2, 4, 8], [0.1, 0.2, 0.3], 0.1) == EqualQualitySize(2.0)
    assert equal_quality_size([2, 4, 8], [0.1, 0.2, 0.3], 0.3) == EqualQualitySize(
        pytest.approx(8.0)
    )


def test_lower_is_better_for_errors() -> None:
    found = equal_quality_size([2, 8], [1.0, 0.9], 0.95, lower_is_better=True)
    assert found == EqualQualitySize(pytest.approx(4.0))


def test_a_quality_above_all_sizes_is_bounded() -> None:
    found = equal_quality_size([2, 4], [0.1, 0.2], 0.5)
    assert found == EqualQualitySize(4.0, "above")
    assert not found.exact
    assert str(found) == "more than 4"


def test_a_quality_below_all_sizes_is_bounded() -> None:
    found = equal_quality_size([2, 4], [0.1, 0.2], 0.05)
    assert found == EqualQualitySize(2.0, "below")
    assert str(found) == "less than 2"


def test_the_smallest_sufficient_size_in_any_order() -> None:
    assert equal_quality_size([8, 2, 4], [0.3, 0.1, 0.2], 0.15) == equal_quality_size(
        [2, 4, 8], [0.1, 0.2, 0.3], 0.15
    )
    bumpy = equal_quality_size([1, 2, 4, 8], [0.1, 0.3, 0.2, 0.4], 0.2)
    assert bumpy.size == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(("sizes", "quality"), [([], []), ([1, 2], [0.1]), ([0, 2], [0.1, 0.2])])
def test_bad_sizes_are_refused(sizes: list[float], quality: list[float]) -> None:
    with pytest.raises(ValueError, match="size"):
        equal_quality_size(sizes, quality, 0.1)
