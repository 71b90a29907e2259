"""Quantization by Triton, in its interpreter, equals quantization in torch."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dips.numerics.fixed_point import (
    PARAMETER_BITS,
    PARAMETER_LIMIT,
    STATE_BITS,
    STATE_LIMIT,
    TritonQuantize,
    quantize_clamped,
    quantize_straight_through,
)

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
pytest.importorskip("triton")


def by_triton(value: Tensor, bits: int, limit: float) -> Tensor:
    """Import the kernel after the interpreter has been switched on."""
    from dips.numerics import triton_quantize

    return triton_quantize.quantize_clamped(value, bits, limit)


GRIDS = [(PARAMETER_BITS, PARAMETER_LIMIT), (STATE_BITS, STATE_LIMIT)]


@pytest.mark.parametrize(("bits", "limit"), GRIDS)
def test_triton_equals_torch(bits: int, limit: float) -> None:
    """Ties, signed zeros, values beyond the limit, infinities and NaN."""
    step = 2.0**-bits
    random = torch.randn(3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edges = torch.tensor([0.0, -0.0, limit, -limit, 2 * limit, torch.inf, -torch.inf, torch.nan])
    halves = (torch.arange(-9, 9).double() + 0.5) * step
    value = torch.cat([random * limit, random * step, edges.double(), halves])
    found, wanted = by_triton(value, bits, limit), quantize_clamped(value, bits, limit)
    assert torch.equal(found.nan_to_num(77.0), wanted.nan_to_num(77.0))
    assert found.isnan().sum() == 1


def test_any_memory_layout() -> None:
    """Transposed, strided, expanded and empty tensors."""
    table = torch.randn(40, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for value in (table.mT, table[3:, 5:50:2], table[:1].expand(9, 60), table[:, :1].mT, table[:0]):
        assert torch.equal(by_triton(value, 12, 16.0), quantize_clamped(value, 12, 16.0))


def test_gradients_are_straight_through() -> None:
    """Under vmap over runs and in a differentiated sum, as networks use it."""
    value = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def found(function: Callable[..., Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
        given = given.clone().requires_grad_()
        made = torch.func.vmap(lambda one: function(one, 12, 16.0) * one.detach())(given)
        return made, torch.autograd.grad(made.sum(), given)[0]

    for layout in (value, value.mT):
        for one, other in zip(
            found(TritonQuantize.apply, layout),
            found(quantize_straight_through, layout),
            strict=True,
        ):
            assert torch.equal(one, other)
    across = torch.func.vmap(lambda one: TritonQuantize.apply(one, 12, 16.0), in_dims=2, out_dims=2)
    assert torch.equal(across(value), quantize_clamped(value, 12, 16.0))
