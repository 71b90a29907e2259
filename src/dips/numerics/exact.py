"""Arithmetic whose result does not depend on the batch (DESIGN 1.6).

Numbers on a dyadic grid multiply and add in float64 without rounding, so a sum is the same in any
order: on one core or many, for one user or a million. Decisions are taken on such numbers only.
"""

from __future__ import annotations

from torch import Tensor

PARAMETER_BITS = 12
"""Parameters are multiples of 2^-12 at decision time."""
STATE_BITS = 16
"""User states and inner-loop coefficients are multiples of 2^-16 at decision time."""
CHANCE_BITS = 30
"""Probabilities are multiples of 2^-30 at decision time."""
SCORE_BITS = 20
"""Scores are multiples of 2^-20: closer ones are ties, and the newer interaction wins."""


def snap(value: Tensor, bits: int) -> Tensor:
    """The nearest multiple of 2^-bits, in float64."""
    scale = float(2**bits)
    return (value.double() * scale).round() / scale


def softmax(logits: Tensor) -> Tensor:
    """Probabilities on a grid, from a sum that is exact in any order."""
    powers = snap((logits - logits.amax(-1, keepdim=True)).exp(), CHANCE_BITS)
    return snap(powers / powers.sum(-1, keepdim=True), CHANCE_BITS)
