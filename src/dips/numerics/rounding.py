"""Round to a grid by one program, see `rounding_kernels`; `exact.nearest` is the same in torch."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

TRITON = find_spec("triton") is not None
BLOCK = 1024
"""Numbers that a program rounds."""


def nearest(value: Tensor, bits: int, limit: float) -> Tensor:
    """[...] float64: the nearest multiple of 2^-bits within the limit, a power of two."""
    from dips.numerics.rounding_triton import round_all

    found = torch.empty_like(value)
    if found.stride() != value.stride():  # not dense: neighbours in memory are others
        value = value.contiguous()
        found = torch.empty_like(value)
    count = value.numel()
    if count:
        scale, most = float(2**bits), float(2**bits) * limit
        with torch.cuda.device_of(value):  # type: ignore[no-untyped-call]
            round_all[(-(-count // BLOCK),)](value, found, count, scale, most, BLOCK=BLOCK)
    return found
