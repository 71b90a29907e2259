"""Matrix products on tiles of items in numba loops, for `numba_softmax`; importing needs numba.

A tile is a matrix [rows, TILE], stored flat: one column per item. The distance of two rows is then
a constant, so the compiler vectorises loops over items. Numbers of rows are multiples of 4 where a
function takes four at a time. Sums are rounded; their order depends on the machine.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from dips.kernels.numba_fixed_point import loop, reassociating_loop

TILE = 256
"""Items in a tile."""
PADDING = np.float32(-1e30)
"""Logit of the padding of the last tile."""

LOW = np.float32(-87.0)
LOG2E, LN2, LN2_REST = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
ROUND = np.float32(1.5 * 2**23)
"""Added and subtracted again, it rounds to a whole number."""
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
ZERO, ONE = np.float32(0), np.float32(1)


@loop  # reassociation would break the rounding
def exp(value):
    """Return exp(value) for value <= 0, by the polynomial of Cephes; 0 below -87."""
    whole = (value * LOG2E + ROUND) - ROUND
    rest = (value - whole * LN2) - whole * LN2_REST
    series = ((((P0 * rest + P1) * rest + P2) * rest + P3) * rest + P4) * rest + P5
    series = series * (rest * rest) + rest + ONE
    power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
    return ZERO if value < LOW else series * power


@reassociating_loop
def add_product(tile, rows, factor):
    """Compute tile += factor @ rows: [m, TILE] += [m, n] @ [n, TILE]; m, n multiples of 4."""
    for to in range(0, factor.shape[0], 4):
        t = tile[to * TILE : (to + 4) * TILE]
        for other in range(0, factor.shape[1], 4):
            r, f = rows[other * TILE : (other + 4) * TILE], factor[to : to + 4, other : other + 4]
            a0, a1, a2, a3 = f[0, 0], f[0, 1], f[0, 2], f[0, 3]
            b0, b1, b2, b3 = f[1, 0], f[1, 1], f[1, 2], f[1, 3]
            c0, c1, c2, c3 = f[2, 0], f[2, 1], f[2, 2], f[2, 3]
            d0, d1, d2, d3 = f[3, 0], f[3, 1], f[3, 2], f[3, 3]
            for at in range(TILE):
                w, x, y, z = r[at], r[TILE + at], r[2 * TILE + at], r[3 * TILE + at]
                t[at] += a0 * w + a1 * x + a2 * y + a3 * z
                t[TILE + at] += b0 * w + b1 * x + b2 * y + b3 * z
                t[2 * TILE + at] += c0 * w + c1 * x + c2 * y + c3 * z
                t[3 * TILE + at] += d0 * w + d1 * x + d2 * y + d3 * z


@reassociating_loop
def add_product_of_transpose(product, tile, rows):
    """Compute product += tile @ rows.T: [m, n] += [m, TILE] @ [TILE, n]; m, n multiples of 4."""
    for one in range(0, product.shape[0], 4):
        t = tile[one * TILE : (one + 4) * TILE]
        for other in range(0, product.shape[1], 4):
            r, p = rows[other * TILE : (other + 4) * TILE], product[one : one + 4]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = ZERO
            c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = ZERO
            for at in range(TILE):
                w, x, y, z = r[at], r[TILE + at], r[2 * TILE + at], r[3 * TILE + at]
                a, b, c, d = t[at], t[TILE + at], t[2 * TILE + at], t[3 * TILE + at]
                a0, a1, a2, a3 = a0 + a * w, a1 + a * x, a2 + a * y, a3 + a * z
                b0, b1, b2, b3 = b0 + b * w, b1 + b * x, b2 + b * y, b3 + b * z
                c0, c1, c2, c3 = c0 + c * w, c1 + c * x, c2 + c * y, c3 + c * z
                d0, d1, d2, d3 = d0 + d * w, d1 + d * x, d2 + d * y, d3 + d * z
            for row, sums in enumerate(
                ((a0, a1, a2, a3), (b0, b1, b2, b3), (c0, c1, c2, c3), (d0, d1, d2, d3))
            ):
                for place in range(4):
                    p[row, other + place] += sums[place]


@reassociating_loop
def add_weighted_rows(total, tile, factor):
    """Compute total += factor @ tile: [TILE] += [m] @ [m, TILE]; any m."""
    for row in range(len(factor)):
        weight, of = factor[row], tile[row * TILE : (row + 1) * TILE]
        for at in range(TILE):
            total[at] += weight * of[at]
