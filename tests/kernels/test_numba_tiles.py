"""Arithmetic on tiles is that of numpy, to the rounding of float32."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from dips.kernels import numba_tiles as tile_loops
from dips.kernels.numba_tiles import TILE

RNG = np.random.default_rng(0)


def _rows(count: int) -> np.ndarray:
    return RNG.standard_normal((count, TILE)).astype(np.float32)


def test_exponentials_are_right_to_two_roundings() -> None:
    """Of numbers up to 0: a relative error below 2e-7, where a rounding is 1.2e-7 at most."""
    value = np.linspace(-86.9, 0, 200_001).astype(np.float32)
    found = np.array([tile_loops.exp(each) for each in value])
    right = np.exp(value.astype(np.float64))
    assert np.abs(found / right - 1).max() < 2e-7
    assert tile_loops.exp(np.float32(0)) == 1


def test_exponentials_of_what_is_far_below_are_0_and_nonsense_stays_nonsense() -> None:
    """Padding lies there; a loss that is no number must be seen."""
    assert tile_loops.exp(np.float32(-87.5)) == 0
    assert tile_loops.exp(np.float32(-1e30)) == 0
    assert np.isnan(tile_loops.exp(np.float32(np.nan)))


def test_combinations_and_products_of_rows() -> None:
    """Matrix products, added to what is there."""
    tile, rows = _rows(8), _rows(12)
    factor = RNG.standard_normal((8, 12)).astype(np.float32)
    wanted, product = tile + factor @ rows, factor + tile @ rows.T
    tile_loops.add_product_of_transpose(factor_too := factor.copy(), tile.ravel(), rows.ravel())
    np.testing.assert_allclose(factor_too, product, rtol=1e-4, atol=1e-4)
    tile_loops.add_product(tile.reshape(-1), rows.ravel(), factor)
    np.testing.assert_allclose(tile, wanted, rtol=1e-4, atol=1e-4)


def test_rows_are_added_with_factors() -> None:
    """Each with its own."""
    tile, total = _rows(4), _rows(1)[0]
    factor = np.array([1, 0, -2, 0.5], np.float32)
    wanted = total + factor @ tile
    tile_loops.add_weighted_rows(total, tile.ravel(), factor)
    np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-5)
