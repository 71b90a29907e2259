"""Rounding by one program, in Triton's interpreter, against rounding in torch."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dips.numerics import rounding
from dips.numerics.exact import (
    PARAMETER_BITS,
    PARAMETER_LIMIT,
    STATE_BITS,
    STATE_LIMIT,
    Rounded,
    nearest,
    rounded,
)

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
pytest.importorskip("triton")

GRIDS = [(PARAMETER_BITS, PARAMETER_LIMIT), (STATE_BITS, STATE_LIMIT)]


@pytest.mark.parametrize(("bits", "limit"), GRIDS)
def test_the_same_as_in_torch(bits: int, limit: float) -> None:
    """Halves, signs, what lies beyond the limit, infinities and what is no number."""
    step = 2.0**-bits
    random = torch.randn(3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edges = torch.tensor([0.0, -0.0, limit, -limit, 2 * limit, torch.inf, -torch.inf, torch.nan])
    halves = (torch.arange(-9, 9).double() + 0.5) * step
    value = torch.cat([random * limit, random * step, edges.double(), halves])
    found, wanted = rounding.nearest(value, bits, limit), nearest(value, bits, limit)
    assert torch.equal(found.nan_to_num(77.0), wanted.nan_to_num(77.0))
    assert found.isnan().sum() == 1


def test_any_layout() -> None:
    """Transposed, cut out, expanded, empty."""
    table = torch.randn(40, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for value in (table.mT, table[3:, 5:50:2], table[:1].expand(9, 60), table[:, :1].mT, table[:0]):
        assert torch.equal(rounding.nearest(value, 12, 16.0), nearest(value, 12, 16.0))


def test_slopes_are_those_of_the_identity() -> None:
    """As a network takes them: for several runs side by side, in a sum that is differentiated."""
    value = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def found(function: Callable[..., Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
        given = given.clone().requires_grad_()
        made = torch.func.vmap(lambda one: function(one, 12, 16.0) * one.detach())(given)
        return made, torch.autograd.grad(made.sum(), given)[0]

    for layout in (value, value.mT):
        for one, other in zip(found(Rounded.apply, layout), found(rounded, layout), strict=True):
            assert torch.equal(one, other)
    across = torch.func.vmap(lambda one: Rounded.apply(one, 12, 16.0), in_dims=2, out_dims=2)
    assert torch.equal(across(value), nearest(value, 12, 16.0))
