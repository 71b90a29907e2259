"""Signs of gradients on vectors that can be counted by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dips.evaluation.gradient_quality import (
    PAPER,
    SignCounts,
    alignment,
    compare_gradients,
    pool_counts,
)

TRUE = torch.tensor([2.0, -1.0, 0.5, -0.25, 0.0, 0.0, 0.0]).double()


def test_every_entry_is_counted_once() -> None:
    found = torch.tensor([0.1, -7.0, -0.5, 0.0, 0.0, 3.0, 0.0]).double()
    kept = compare_gradients(TRUE, found)
    assert kept == SignCounts(preserved=2, negated=1, zeroed=1, made_nonzero=1, left_zero=2)
    assert kept.nonzero == 4
    shares = {"preserved": 0.5, "negated": 0.25, "zeroed": 0.25, "made_nonzero": 1 / 3}
    assert kept.shares() == pytest.approx(shares)


@pytest.mark.parametrize(("factor", "place"), [(1.0, "preserved"), (-3.0, "negated")])
def test_signs_do_not_depend_on_the_norm(factor: float, place: str) -> None:
    assert compare_gradients(TRUE, factor * TRUE).shares()[place] == 1.0


def test_a_zero_gradient_zeroes_all_entries() -> None:
    assert compare_gradients(TRUE, 0 * TRUE) == SignCounts(0, 0, 4, 0, 3)
    assert compare_gradients(0 * TRUE, TRUE) == SignCounts(0, 0, 0, 4, 3)
    assert set(compare_gradients(0 * TRUE, 0 * TRUE).shares().values()) == {0.0}


def test_zero_is_relative_to_the_largest_entry_of_the_same_gradient() -> None:
    true = torch.tensor([100.0, 1.0, -1e-3])
    found = torch.tensor([1.0, 2e-3, -1e-2])
    assert compare_gradients(true, found, 0.0) == SignCounts(3, 0, 0, 0, 0)
    assert compare_gradients(true, found, 1e-4) == SignCounts(2, 0, 0, 1, 0)
    assert compare_gradients(true, found, 5e-3) == SignCounts(1, 0, 1, 1, 0)
    assert compare_gradients(true, found, 1e-2) == SignCounts(1, 0, 0, 0, 2)  # at most: 1 is zero


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=30))
def test_counts_equal_those_of_a_loop(pairs: list[tuple[int, int]]) -> None:
    true, found = (torch.tensor(column).double() for column in zip(*pairs, strict=True))
    expected = SignCounts(
        sum(a * b > 0 for a, b in pairs),
        sum(a * b < 0 for a, b in pairs),
        sum(a != 0 and b == 0 for a, b in pairs),
        sum(a == 0 and b != 0 for a, b in pairs),
        sum(a == 0 and b == 0 for a, b in pairs),
    )
    assert compare_gradients(true, found) == expected
    assert sum(expected) == len(pairs)


def test_gradients_are_pooled_by_entries() -> None:
    both = pool_counts([SignCounts(1, 0, 1, 2, 0), SignCounts(6, 1, 1, 0, 8)])
    assert both == SignCounts(7, 1, 2, 2, 8)
    assert both.shares()["preserved"] == 0.7


def test_alignment() -> None:
    true = torch.tensor([3.0, 4.0])
    assert alignment(true, 2 * true) == pytest.approx({"cosine": 1.0, "length": 2.0})
    assert alignment(true, torch.tensor([-4.0, 3.0]))["cosine"] == pytest.approx(0.0, abs=1e-7)
    assert alignment(true, 0 * true) == {"cosine": 0.0, "length": 0.0}


def test_the_shares_of_the_paper_sum_to_one() -> None:
    for shares in PAPER.values():
        assert shares["preserved"] + shares["negated"] + shares["zeroed"] == pytest.approx(1.0)
