"""Compare an approximate gradient with the true one: signs of entries, cosine and norm.

Knows nothing about where the gradients come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from dips.evaluation.settings import TOLERANCE


class SignCounts(NamedTuple):
    """Entries of the true gradient, counted by their sign in the approximation."""

    preserved: int
    """Not zero, with the same sign."""
    negated: int
    """Not zero, with the opposite sign."""
    zeroed: int
    """Not zero, but zero in the approximation."""
    made_nonzero: int
    """Zero, but not zero in the approximation."""
    left_zero: int
    """Zero in both."""

    @property
    def nonzero(self) -> int:
        """Number of non-zero entries of the true gradient."""
        return self.preserved + self.negated + self.zeroed

    def shares(self) -> dict[str, float]:
        """Return the counts as shares of the non-zero entries.

        `made_nonzero` is a share of the zero entries. Without such entries a share is 0.
        """
        whole, zero = max(1, self.nonzero), max(1, self.made_nonzero + self.left_zero)
        return {
            "preserved": self.preserved / whole,
            "negated": self.negated / whole,
            "zeroed": self.zeroed / whole,
            "made_nonzero": self.made_nonzero / zero,
        }


def compare_gradients(true: Tensor, found: Tensor, tolerance: float = TOLERANCE) -> SignCounts:
    """Count the entries of the true gradient by their sign in an approximation.

    Args:
        true: True gradient, [entries].
        found: Approximate gradient, [entries].
        tolerance: Share of the largest entry up to which an entry counts as zero.
    """
    expected, other = _signs(true, tolerance), _signs(found, tolerance)
    nonzero = expected != 0
    cases = (
        nonzero & (expected == other),
        nonzero & (expected == -other),
        nonzero & (other == 0),
        ~nonzero & (other != 0),
        ~nonzero & (other == 0),
    )
    return SignCounts(*(int(case.sum()) for case in cases))


def alignment(true: Tensor, found: Tensor) -> dict[str, float]:
    """Return cosine similarity and relative norm (`length`) of an approximate gradient.

    Both are 0 if either gradient is zero.
    """
    whole, other = float(true.norm()), float(found.norm())
    if not whole or not other:
        return {"cosine": 0.0, "length": 0.0}
    return {"cosine": float(true @ found) / (whole * other), "length": other / whole}


def pool_counts(counts: Iterable[SignCounts]) -> SignCounts:
    """Add the counts of several gradients."""
    return SignCounts(*map(sum, zip(*counts, strict=True)))


def _signs(gradient: Tensor, tolerance: float) -> Tensor:
    """Return -1, 0 or 1 for each entry, [entries]."""
    size = gradient.abs()
    return gradient.sign() * (size > tolerance * size.max())


PAPER: dict[str, dict[str, float]] = {
    "dips": {"preserved": 0.74, "negated": 0.18, "zeroed": 0.08, "made_nonzero": 0.003},
    "dips@1": {"preserved": 0.12, "negated": 0.06, "zeroed": 0.82, "made_nonzero": 0.0003},
}
"""Shares that the paper's supplement reports for MovieLens 1M."""
