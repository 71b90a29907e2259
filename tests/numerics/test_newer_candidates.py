"""Weights of newer candidates: pairs and sorting give the same bits and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap

from dips.numerics import newer_candidates as newer
from dips.numerics.fixed_point import quantize_parameter


def _random_candidates(
    rows: int, n: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return shuffled positions with empty slots (position -1, weight 0) and few items."""
    generator = torch.Generator().manual_seed(seed)
    position = torch.stack([torch.randperm(3 * n, generator=generator)[:n] for _ in range(rows)])
    gone = torch.rand(rows, n, generator=generator) < 0.2
    item = torch.randint(0, 4, (rows, n), generator=generator).masked_fill(gone, 0)
    weight = torch.rand(rows, n, dtype=torch.float64, generator=generator).masked_fill(gone, 0.0)
    return position.masked_fill(gone, -1), item, weight


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 1000))
def test_sorting_equals_pairs(rows: int, n: int, seed: int) -> None:
    """Both equal the sum that is written out."""
    position, item, weight = _random_candidates(rows, n, seed)
    later = position[:, None, :] > position[:, :, None]
    same = item[:, None, :] == item[:, :, None]
    fixed = quantize_parameter(weight)
    for group, counts in ((torch.zeros_like(item), later), (item, later & same)):
        wanted = torch.where(counts, fixed[:, None, :], 0.0).sum(2)
        assert torch.equal(newer.sum_pairwise(counts, fixed), wanted)
        assert torch.equal(newer.sum_by_sorting(group, position, fixed), wanted)


@pytest.mark.parametrize("n", [5, 40])
def test_gradients_agree(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under vmap over stacked runs, as networks use it."""
    position, item, weight = (field.view(2, 3, n) for field in _random_candidates(6, n, 7))
    aim = torch.randn(2, 3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def total(weight, position, item, aim):
        found = newer.newer_weight(position, weight)
        found = found + 2 * newer.newer_duplicate_weight(position, item, weight)
        return (found * aim).sum()

    gradients = []
    for most in (0, 100):
        monkeypatch.setattr(newer, "MAX_PAIRWISE", most)
        gradients.append(vmap(grad(total))(weight, position, item, aim))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)
    assert bool(gradients[0].abs().max() > 0)
