"""Arithmetic whose result does not depend on the batch (DESIGN 1.6).

Numbers on a dyadic grid multiply and add in float64 without rounding, so a sum is the same in any
order: on one core or many, for one user or a million. Decisions are taken on such numbers only.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.numerics import rounding

PARAMETER_BITS = 12
"""Parameters are multiples of 2^-12 at decision time."""
STATE_BITS = 16
"""User states and inner-loop coefficients are multiples of 2^-16 at decision time."""
CHANCE_BITS = 30
"""Probabilities are multiples of 2^-30 at decision time."""
SCORE_BITS = 20
"""Scores are multiples of 2^-20: closer ones are ties, and the newer interaction wins."""

PARAMETER_LIMIT, STATE_LIMIT, TERMS = 2.0**4, 2.0**9, 2**12 - 1
"""Parameters and states of a network are cut off here: so many products sum up below 2^53."""


def quantize(value: Tensor, bits: int) -> Tensor:
    """The nearest multiple of 2^-bits, in float64."""
    scale = float(2**bits)
    return (value.double() * scale).round_().mul_(1 / scale)  # in place: tables may be large


def softmax(logits: Tensor) -> Tensor:
    """Probabilities on a grid, from a sum that is exact in any order."""
    powers = quantize((logits - logits.amax(-1, keepdim=True)).exp(), CHANCE_BITS)
    return quantize(powers / powers.sum(-1, keepdim=True), CHANCE_BITS)


def rounded(value: Tensor, bits: int, limit: float) -> Tensor:
    """The nearest multiple of 2^-bits within the limit, with the slope of the identity."""
    exact = value.double()
    if exact.is_cuda and rounding.TRITON:
        return cast(Tensor, Rounded.apply(exact, bits, limit))  # type: ignore[no-untyped-call]
    fixed = exact.detach()
    near = nearest(fixed, bits, limit)
    return near + (exact - fixed) if torch.is_grad_enabled() else near


def nearest(value: Tensor, bits: int, limit: float) -> Tensor:
    """The same without a slope."""
    return quantize(value.clamp(-limit, limit), bits)


class Rounded(torch.autograd.Function):
    """The same by one program: on a GPU networks on the grid do little else."""

    @staticmethod
    def forward(value: Tensor, bits: int, limit: float) -> Tensor:
        """[...] float64."""
        return rounding.nearest(value, bits, limit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is needed on the way back."""

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        """As if nothing had been rounded."""
        return slopes[0], None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], value: Tensor, bits: int, limit: float
    ) -> tuple[Tensor, int | None]:
        """Each number is on its own: an axis more makes no difference."""
        del info
        found = Rounded.apply(value, bits, limit)  # type: ignore[no-untyped-call]
        return found, in_dims[0]


def parameter(value: Tensor) -> Tensor:
    """A parameter as a network on the grid uses it."""
    return rounded(value, PARAMETER_BITS, PARAMETER_LIMIT)


def matmul(states: Tensor, parameters: Tensor) -> Tensor:
    """A product of matrices on the grid: the same bits for any order of the sums."""
    if states.shape[-1] > TERMS:
        raise ConfigError(f"{states.shape[-1]} terms: sums are exact up to {TERMS}")
    return rounded(states, STATE_BITS, STATE_LIMIT) @ parameter(parameters)


def linear(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """An affine map on the grid: [..., n] -> [..., m] for weights [m, n]."""
    return matmul(states, weight.mT) + parameter(bias)
