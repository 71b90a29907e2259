"""Clamp and quantize by one Triton program. `fixed_point.quantize_clamped` is the reference.

Importing this module needs triton.
"""

# mypy: disable-error-code="import, untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Elements per program."""
INTEGER_FROM = tl.constexpr(2.0**52)
"""Every float64 of at least this size is an integer."""


def quantize_clamped(value: Tensor, bits: int, limit: float) -> Tensor:
    """Clamp to [-limit, limit], then round to the nearest multiple of 2^-bits.

    Args:
        value: Float64 CUDA tensor of any shape and memory layout.
        bits: Number of fractional bits.
        limit: Largest absolute value, a power of two.

    Returns:
        Float64 tensor of the same shape.
    """
    out = torch.empty_like(value)
    if out.stride() != value.stride():  # not dense: the kernel reads memory in order
        value = value.contiguous()
        out = torch.empty_like(value)
    count = value.numel()
    if count:
        scale, most = float(2**bits), float(2**bits) * limit
        with torch.cuda.device_of(value):
            _quantize_kernel[(-(-count // BLOCK),)](value, out, count, scale, most, BLOCK=BLOCK)
    return out


@triton.jit(do_not_specialize=["count"])
def _quantize_kernel(value, out, count, scale, most, BLOCK: tl.constexpr):
    """Round each element to a multiple of 1 / scale, halves to even.

    Triton passes `scale` and `most` as float32, which is exact: both are powers of two.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = index < count
    scaled = tl.load(value + index, valid, 0) * scale
    scaled = tl.clamp(scaled, -most, most, propagate_nan=tl.PropagateNan.ALL)
    nearest = (scaled + 1.5 * INTEGER_FROM) - 1.5 * INTEGER_FROM
    tl.store(out + index, nearest / scale, valid)
