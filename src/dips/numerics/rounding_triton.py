"""The program behind `rounding`, in Triton: importing this needs triton."""

# mypy: disable-error-code="import, untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

import triton
import triton.language as tl

WHOLE = tl.constexpr(2.0**52)
"""From here on, all numbers of float64 are whole."""


@triton.jit(do_not_specialize=["count"])
def round_all(value, found, count, scale, most, BLOCK: tl.constexpr):
    """Round each number to a multiple of 1 / scale, halves to even.

    Scale and limit are powers of two, which float32, as which they arrive, holds exactly.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    scaled = tl.load(value + place, there, 0) * scale
    scaled = tl.clamp(scaled, -most, most, propagate_nan=tl.PropagateNan.ALL)
    near = (scaled + 1.5 * WHOLE) - 1.5 * WHOLE
    tl.store(found + place, near / scale, there)
