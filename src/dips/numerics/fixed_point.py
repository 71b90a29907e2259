"""Fixed-point arithmetic in float64, for every number that a decision depends on.

Values are rounded to multiples of 2^-bits (the fixed-point grid) and clamped to a limit. Products
and sums of such values are exact in float64, so the order of a sum does not change its bits.
A sketch is therefore the same for any batch size, thread count and device.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from dips.errors import ConfigError

PARAMETER_BITS = 12
"""Fractional bits of a parameter: multiples of 2^-12."""
STATE_BITS = 16
"""Fractional bits of user states and inner-loop coefficients: multiples of 2^-16."""
PROBABILITY_BITS = 30
"""Fractional bits of a probability: multiples of 2^-30."""
SCORE_BITS = 20
"""Fractional bits of a policy score: multiples of 2^-20. Equal scores are ties, the newer wins."""

PARAMETER_LIMIT = 2.0**4
"""Largest absolute value of a quantized network parameter."""
STATE_LIMIT = 2.0**9
"""Largest absolute value of a quantized network activation."""
MAX_TERMS = 2**12 - 1
"""Most products in one exact sum. `MAX_TERMS` products at both limits stay below 2^53 steps."""

HAS_TRITON = find_spec("triton") is not None


def quantize(value: Tensor, bits: int) -> Tensor:
    """Round to the nearest multiple of 2^-bits, halves to even.

    Args:
        value: Tensor of any shape and floating dtype.
        bits: Number of fractional bits.

    Returns:
        Float64 tensor of the same shape. No gradient flows through the rounding.
    """
    scale = float(2**bits)
    return (value.double() * scale).round_().mul_(1 / scale)  # in place: tables may be large


def quantize_clamped(value: Tensor, bits: int, limit: float) -> Tensor:
    """Clamp to [-limit, limit], then round to the nearest multiple of 2^-bits.

    Args:
        value: Tensor of any shape and floating dtype.
        bits: Number of fractional bits.
        limit: Largest absolute value, a power of two.

    Returns:
        Float64 tensor of the same shape. No gradient flows through the rounding.
    """
    return quantize(value.clamp(-limit, limit), bits)


def quantize_straight_through(value: Tensor, bits: int, limit: float) -> Tensor:
    """Clamp and quantize; use the identity as gradient (straight-through estimator).

    On CUDA one Triton program does both, because quantization dominates small policy networks.

    Args:
        value: Tensor of any shape and floating dtype.
        bits: Number of fractional bits.
        limit: Largest absolute value, a power of two.

    Returns:
        Float64 tensor of the same shape.
    """
    exact = value.double()
    if exact.is_cuda and HAS_TRITON:
        return cast(Tensor, TritonQuantize.apply(exact, bits, limit))  # type: ignore[no-untyped-call]
    fixed = exact.detach()
    nearest = quantize_clamped(fixed, bits, limit)
    return nearest + (exact - fixed) if torch.is_grad_enabled() else nearest


def quantize_parameter(value: Tensor) -> Tensor:
    """Quantize a network parameter: `PARAMETER_BITS`, `PARAMETER_LIMIT`, straight-through."""
    return quantize_straight_through(value, PARAMETER_BITS, PARAMETER_LIMIT)


def matmul(states: Tensor, parameters: Tensor) -> Tensor:
    """Multiply matrices in fixed point: the bits do not depend on the order of the sums.

    Args:
        states: [..., m, n] activations, quantized here with `STATE_BITS`.
        parameters: [..., n, p] parameters, quantized here with `PARAMETER_BITS`.

    Returns:
        [..., m, p] in float64, differentiable with straight-through gradients.

    Raises:
        ConfigError: If n is larger than `MAX_TERMS`, because the sum would not be exact.
    """
    if states.shape[-1] > MAX_TERMS:
        raise ConfigError(f"{states.shape[-1]} terms: sums are exact up to {MAX_TERMS}")
    quantized = quantize_straight_through(states, STATE_BITS, STATE_LIMIT)
    return quantized @ quantize_parameter(parameters)


def linear(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply an affine map in fixed point.

    Args:
        states: [..., n] activations.
        weight: [m, n] weights.
        bias: [m] biases.

    Returns:
        [..., m] in float64.

    Raises:
        ConfigError: If n is larger than `MAX_TERMS`.
    """
    return matmul(states, weight.mT) + quantize_parameter(bias)


def softmax(logits: Tensor) -> Tensor:
    """Return softmax probabilities over the last axis, quantized to `PROBABILITY_BITS`.

    Args:
        logits: [..., n] float64.

    Returns:
        [..., n] probabilities whose bits do not depend on the order of the items.
    """
    powers = quantize((logits - logits.amax(-1, keepdim=True)).exp(), PROBABILITY_BITS)
    return quantize(powers / powers.sum(-1, keepdim=True), PROBABILITY_BITS)


class TritonQuantize(torch.autograd.Function):
    """`quantize_straight_through` of float64 CUDA tensors, by one Triton program."""

    @staticmethod
    def forward(value: Tensor, bits: int, limit: float) -> Tensor:
        """Clamp and quantize a float64 tensor of any shape."""
        from dips.numerics.triton_quantize import quantize_clamped as by_triton

        return by_triton(value, bits, limit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save nothing: the gradient is the identity."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the incoming gradient unchanged."""
        return gradients[0], None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], value: Tensor, bits: int, limit: float
    ) -> tuple[Tensor, int | None]:
        """Quantize all runs at once: the operation is elementwise."""
        del info
        quantized = TritonQuantize.apply(value, bits, limit)  # type: ignore[no-untyped-call]
        return quantized, in_dims[0]
