"""Sizes at equal quality: between points, at points, and honestly beyond them."""

import math

import pytest

from dips.evaluation.equivalence import EqualSize, equal_size


def test_halfway_between_two_points_is_their_geometric_mean() -> None:
    found = equal_size([2, 4, 8], [0.1, 0.2, 0.3], 0.25)
    assert found.exact
    assert found.size == pytest.approx(math.sqrt(32))
    assert found.ratio(4) == pytest.approx(math.sqrt(2))
    assert str(found) == "5.66"


def test_a_point_answers_with_its_own_size() -> None:
    assert equal_size([2, 4, 8], [0.1, 0.2, 0.3], 0.2) == EqualSize(4.0)
    assert equal_size([2, 4, 8], [0.1, 0.2, 0.3], 0.1) == EqualSize(2.0)
    assert equal_size([2, 4, 8], [0.1, 0.2, 0.3], 0.3) == EqualSize(pytest.approx(8.0))


def test_errors_fall() -> None:
    found = equal_size([2, 8], [1.0, 0.9], 0.95, lower_is_better=True)
    assert found == EqualSize(pytest.approx(4.0))


def test_better_than_the_largest_size_is_said_and_not_guessed() -> None:
    found = equal_size([2, 4], [0.1, 0.2], 0.5)
    assert found == EqualSize(4.0, "above")
    assert not found.exact
    assert str(found) == "more than 4"


def test_worse_than_the_smallest_size_is_said_and_not_guessed() -> None:
    found = equal_size([2, 4], [0.1, 0.2], 0.05)
    assert found == EqualSize(2.0, "below")
    assert str(found) == "less than 2"


def test_order_does_not_matter_and_the_smallest_size_that_reaches_it_counts() -> None:
    assert equal_size([8, 2, 4], [0.3, 0.1, 0.2], 0.15) == equal_size(
        [2, 4, 8], [0.1, 0.2, 0.3], 0.15
    )
    bumpy = equal_size([1, 2, 4, 8], [0.1, 0.3, 0.2, 0.4], 0.2)
    assert bumpy.size == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(("sizes", "quality"), [([], []), ([1, 2], [0.1]), ([0, 2], [0.1, 0.2])])
def test_nonsense_is_refused(sizes: list[float], quality: list[float]) -> None:
    with pytest.raises(ValueError, match="size"):
        equal_size(sizes, quality, 0.1)
