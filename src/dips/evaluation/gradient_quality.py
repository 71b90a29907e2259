"""How much of a gradient's direction an approximation keeps, entry by entry.

Pure comparison of vectors; knows nothing of where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

TOLERANCE = 1e-12
"""An entry counts as zero up to this share of the largest entry of its own gradient.

Gradients in float64 are rounded far below it.
"""


class Kept(NamedTuple):
    """Entries of the true gradient, counted by what became of them."""

    preserved: int
    """Not zero, and of the same sign."""
    negated: int
    """Not zero, and of the other sign."""
    zeroed: int
    """Not zero, and lost."""
    made_nonzero: int
    """Zero, and no longer so."""
    left_zero: int
    """Zero in both."""

    @property
    def nonzero(self) -> int:
        """Entries of the true gradient that are not zero."""
        return self.preserved + self.negated + self.zeroed

    def shares(self) -> dict[str, float]:
        """Shares of the non-zero entries, and the share of the zero entries that became non-zero.

        Shares of nothing are 0.
        """
        whole, zero = max(1, self.nonzero), max(1, self.made_nonzero + self.left_zero)
        return {
            "preserved": self.preserved / whole,
            "negated": self.negated / whole,
            "zeroed": self.zeroed / whole,
            "made_nonzero": self.made_nonzero / zero,
        }


def compare_gradients(true: Tensor, found: Tensor, tolerance: float = TOLERANCE) -> Kept:
    """What became of every entry of the true gradient in the one that was found."""
    mine, other = _signs(true, tolerance), _signs(found, tolerance)
    alive = mine != 0
    outcomes = (
        alive & (mine == other),
        alive & (mine == -other),
        alive & (other == 0),
        ~alive & (other != 0),
        ~alive & (other == 0),
    )
    return Kept(*(int(outcome.sum()) for outcome in outcomes))


def alignment(true: Tensor, found: Tensor) -> dict[str, float]:
    """The cosine of the angle between both gradients, and the length of the one that was found.

    The length is relative to the true one's; where either is nothing, both numbers are 0.
    """
    whole, other = float(true.norm()), float(found.norm())
    if not whole or not other:
        return {"cosine": 0.0, "length": 0.0}
    return {"cosine": float(true @ found) / (whole * other), "length": other / whole}


def pooled(counts: Iterable[Kept]) -> Kept:
    """All entries of several gradients together."""
    return Kept(*map(sum, zip(*counts, strict=True)))


def _signs(gradient: Tensor, tolerance: float) -> Tensor:
    """-1, 0 or 1 for each entry."""
    size = gradient.abs()
    return gradient.sign() * (size > tolerance * size.max())


PAPER: dict[str, dict[str, float]] = {
    "dips": {"preserved": 0.74, "negated": 0.18, "zeroed": 0.08, "made_nonzero": 0.003},
    "dips@1": {"preserved": 0.12, "negated": 0.06, "zeroed": 0.82, "made_nonzero": 0.0003},
}
"""What the paper's supplement reports for MovieLens 1M."""
