"""Pieces are as wide as memory allows, and on a CPU no wider than its caches."""

from __future__ import annotations

import pytest
import torch

from dips.numerics.chunks import FEW, NEAR, pieces, rows_at_once


@pytest.mark.parametrize("breadth", [1, 100, 5_000, 1_000_000])
@pytest.mark.parametrize("most", [1, 1 << 22, 1 << 26])
def test_rows_at_once(most: int, breadth: int) -> None:
    cpu, cuda = (rows_at_once(most, breadth, torch.device(name)) for name in ("cpu", "cuda"))
    assert cuda == max(1, most // breadth)
    assert 1 <= cpu <= cuda
    assert cpu * breadth <= max(NEAR, FEW * breadth)
    assert cpu == cuda or cpu >= FEW


@pytest.mark.parametrize("axis", [0, 1])
def test_pieces_are_the_whole(axis: int) -> None:
    breadth = NEAR // 20  # 20 rows at once
    rows = torch.arange(3 * 50 * 2).view(3, 50, 2).transpose(0, 1 - axis)
    cut = list(pieces((rows, rows[..., 0]), breadth, axis))
    assert [piece[0].shape[axis] for piece in cut] == [20, 20, 10]
    for whole, parts in zip((rows, rows[..., 0]), zip(*cut, strict=True), strict=True):
        assert torch.equal(torch.cat(parts, axis), whole)


def test_no_rows_are_one_piece() -> None:
    assert [len(piece) for piece in pieces(torch.zeros(0, 2), 5)] == [0]
