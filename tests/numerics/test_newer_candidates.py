"""Weights of newer candidates: by pairs and by sorting, the same bits and the same slopes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap

from dips.numerics import newer_candidates as newer
from dips.numerics.exact import parameter


def _made(rows: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Positions in any order, some of them nowhere (-1, of no weight), few items."""
    generator = torch.Generator().manual_seed(seed)
    position = torch.stack([torch.randperm(3 * n, generator=generator)[:n] for _ in range(rows)])
    gone = torch.rand(rows, n, generator=generator) < 0.2
    item = torch.randint(0, 4, (rows, n), generator=generator).masked_fill(gone, 0)
    weight = torch.rand(rows, n, dtype=torch.float64, generator=generator).masked_fill(gone, 0.0)
    return position.masked_fill(gone, -1), item, weight


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 1000))
def test_sorting_is_as_good_as_pairs(rows: int, n: int, seed: int) -> None:
    """Written out: what counts is later, and of the same item."""
    position, item, weight = _made(rows, n, seed)
    later = position[:, None, :] > position[:, :, None]
    same = item[:, None, :] == item[:, :, None]
    fixed = parameter(weight)
    for group, counts in ((torch.zeros_like(item), later), (item, later & same)):
        wanted = torch.where(counts, fixed[:, None, :], 0.0).sum(2)
        assert torch.equal(newer.by_pairs(counts, fixed), wanted)
        assert torch.equal(newer.by_sorting(group, position, fixed), wanted)


@pytest.mark.parametrize("n", [5, 40])
def test_slopes_are_alike(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over runs side by side, as networks ask."""
    position, item, weight = (field.view(2, 3, n) for field in _made(6, n, 7))
    aim = torch.randn(2, 3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def total(weight, position, item, aim):
        found = newer.newer_weight(position, weight) + 2 * newer.newer_twins(position, item, weight)
        return (found * aim).sum()

    slopes = []
    for wide in (0, 100):
        monkeypatch.setattr(newer, "WIDE", wide)
        slopes.append(vmap(grad(total))(weight, position, item, aim))
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-12, atol=1e-12)
    assert bool(slopes[0].abs().max() > 0)
