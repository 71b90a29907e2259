"""Pieces are as wide as memory allows, and on a CPU no wider than its caches."""

from __future__ import annotations

import pytest
import torch

from dips.numerics.pieces import FEW, NEAR, rows_at_once


@pytest.mark.parametrize("breadth", [1, 100, 5_000, 1_000_000])
@pytest.mark.parametrize("most", [1, 1 << 22, 1 << 26])
def test_rows_at_once(most: int, breadth: int) -> None:
    cpu, cuda = (rows_at_once(most, breadth, torch.device(name)) for name in ("cpu", "cuda"))
    assert cuda == max(1, most // breadth)
    assert 1 <= cpu <= cuda
    assert cpu * breadth <= max(NEAR, FEW * breadth)
    assert cpu == cuda or cpu >= FEW
