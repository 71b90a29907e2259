"""Arithmetic on the grid of decisions (`exact`) inside compiled loops: importing this needs numba.

Sums are over numbers on a grid, so their order does not matter; multiplying and adding at once
(`exact_loop`) is allowed where it is exact, and nowhere else.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

from dips.numerics.exact import STATE_BITS, STATE_LIMIT

FILES = sorted(Path(__file__).parent.glob("numba_*.py"))
STAMP = tuple((file.stat().st_mtime, file.stat().st_size) for file in FILES)
"""Of all loops. They are built into each other, but numba looks at a program's own file only."""


def loop(function: Callable[..., Any]) -> Any:
    """Compile a loop, and keep the program on disk until any of the files changes."""
    return _kept(njit(cache=True, nogil=True, error_model="numpy")(function))


def exact_loop(function: Callable[..., Any]) -> Any:
    """The same for sums of products on the grid only."""
    free = {"contract", "reassoc"}
    return _kept(njit(cache=True, nogil=True, error_model="numpy", fastmath=free)(function))


sum_loop = exact_loop
"""The same for sums that are rounded, in whichever order: nothing is decided by them."""


def _kept(program: Any) -> Any:
    program._cache._cache_file._source_stamp = STAMP
    return program


STATE = 2.0**STATE_BITS
WHOLE = 2.0**52
"""From here on, all numbers of float64 are whole."""


@loop
def quantize(value, scale):
    """The nearest multiple of 1 / scale, halves to even: as `exact.quantize`."""
    scaled = value * scale
    size = abs(scaled)
    near = (size + WHOLE) - WHOLE if size < WHOLE else size
    return math.copysign(near, scaled) * (1.0 / scale)


@loop
def fixed(value):
    """A state as a network on the grid uses it: as `exact.rounded`."""
    scaled = min(max(value, -STATE_LIMIT), STATE_LIMIT) * STATE
    return ((scaled + 1.5 * WHOLE) - 1.5 * WHOLE) * (1.0 / STATE)


@loop
def put(to, row):
    """Copy a row: quicker than a slice that is assigned to, which first looks for overlaps."""
    for place in range(len(to)):
        to[place] = row[place]


@exact_loop
def dot(left, right):
    """The sum of products, exact on the grid."""
    total = 0.0
    for place in range(len(left)):
        total += left[place] * right[place]
    return total


@exact_loop
def add(total, factor, row):
    """Add a multiple of a row, exact on the grid."""
    for place in range(len(row)):
        total[place] += factor * row[place]


@exact_loop
def multiply(total, states, rows, some):
    """Add the product of a vector, most of it perhaps 0, with a matrix; `some` is room to count.

    Four rows at a time: what is written is loaded and stored once for them.
    """
    count = 0
    for place in range(len(states)):  # without a branch: which ones are 0 cannot be guessed
        some[count] = place
        count += states[place] != 0.0
    whole = count - count % 4
    for turn in range(0, whole, 4):
        a, b, c, d = some[turn], some[turn + 1], some[turn + 2], some[turn + 3]
        fa, fb, fc, fd = states[a], states[b], states[c], states[d]
        ra, rb, rc, rd = rows[a], rows[b], rows[c], rows[d]
        for unit in range(len(total)):
            total[unit] += fa * ra[unit] + fb * rb[unit] + fc * rc[unit] + fd * rd[unit]
    for turn in range(whole, count):
        add(total, states[some[turn]], rows[some[turn]])
