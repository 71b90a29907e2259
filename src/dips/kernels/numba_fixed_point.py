"""Fixed-point arithmetic (`numerics.fixed_point`) inside numba loops; importing this needs numba.

Sums of numbers on the fixed-point grid do not depend on their order. So `reassociating_loop` gives
the same bits there, with fused multiply-add and in any order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, attr-defined"
from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from numba import config, njit
from numba.core import event

from dips.kernels.cache import cache_directory
from dips.numerics.fixed_point import STATE_BITS, STATE_LIMIT

COMPILE_SECONDS = 10
"""About how long the kernels of a training run compile, on one core."""


class CompileNotice(event.Listener):
    """Logs once, when the first kernel of this process is compiled and not loaded from the cache.

    It is a warning, so that Python shows it on standard error where nothing else is configured.
    """

    said = False

    def on_start(self, event: Any) -> None:
        """Log the notice, unless it is about a function of somebody else."""
        if self.said or not event.data["dispatcher"].py_func.__module__.startswith("dips.kernels"):
            return
        self.said = True
        folder = cache_directory()
        often = "once" if folder else "in every process, as no directory for them is writable"
        place = f"; they are kept in {folder}" if folder else "; set DIPS_CACHE to one that is"
        text = "Compiling kernels for this machine: %s, about %d s%s"
        logging.getLogger(__name__).warning(text, often, COMPILE_SECONDS, place)

    def on_end(self, event: Any) -> None:
        """Do nothing."""


PART = {"_nrt": False, "no_cpython_wrapper": True}
"""Options of functions that Python never calls; a wrapper takes as long to compile as they do."""
NOTICE = CompileNotice()
event.register("numba:compile", NOTICE)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls and that allocates no arrays: without reference counts.

    Its buffers are made by the caller.
    """
    return _compile(function, _nrt=False)


def loop(function: Callable[..., Any]) -> Any:
    """Compile a function without reordering its arithmetic, cached in `cache_directory`."""
    return _compile(function)


def inner_loop(function: Callable[..., Any]) -> Any:
    """Compile a function that allocates no arrays: inlined, without reference counts.

    The caller must hold all arrays. Each refresh passes named tuples of about 70 arrays: copying
    them and counting references took ten times as long as a refresh by `last`.
    """
    return _compile(function, **PART, forceinline=True)


def large_loop(function: Callable[..., Any]) -> Any:
    """Compile a function like `inner_loop`, but do not inline it: it would be compiled again."""
    return _compile(function, **PART)


def inlined(function: Callable[..., Any]) -> Any:
    """Inline a function before compilation: it is compiled with its callers only.

    For the two outermost parts of a kernel: compiled alone, they would be optimised three times.
    """
    return njit(inline="always", error_model="numpy")(function)


def reassociating_loop(function: Callable[..., Any]) -> Any:
    """Compile a function whose sums may be reordered, and fused with products.

    Two uses are allowed: sums on the fixed-point grid, where every order gives the same bits; and
    rounded sums on which no decision depends (`numba_softmax`).
    """
    return _compile(function, fastmath={"contract", "reassoc"})


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    """Compile with numba; other users of numba keep their own cache directory."""
    folder, before = cache_directory(), config.CACHE_DIR
    config.CACHE_DIR = folder or before
    try:
        options = {"no_cfunc_wrapper": True, **options}
        return njit(cache=bool(folder), nogil=True, error_model="numpy", **options)(function)
    finally:
        config.CACHE_DIR = before


STATE = 2.0**STATE_BITS
WHOLE = 2.0**52
"""All float64 numbers from here on are whole."""


@loop
def quantize(value, scale):
    """Return the nearest multiple of 1 / scale, halves to even: `fixed_point.quantize`."""
    scaled = value * scale
    size = abs(scaled)
    near = (size + WHOLE) - WHOLE if size < WHOLE else size
    return math.copysign(near, scaled) * (1.0 / scale)


@loop
def to_state(value):
    """Return a clamped network state on the grid: `fixed_point.quantize_clamped`."""
    scaled = min(max(value, -STATE_LIMIT), STATE_LIMIT) * STATE
    return ((scaled + 1.5 * WHOLE) - 1.5 * WHOLE) * (1.0 / STATE)


@loop
def copy(target, source):
    """Copy a vector; faster than assigning a slice, which checks for overlaps."""
    for place in range(len(target)):
        target[place] = source[place]


@reassociating_loop
def dot(left, right):
    """Return the dot product of two vectors on the grid."""
    total = 0.0
    for place in range(len(left)):
        total += left[place] * right[place]
    return total


@reassociating_loop
def add(total, factor, vector):
    """Add a multiple of a vector on the grid to `total`."""
    for place in range(len(vector)):
        total[place] += factor * vector[place]


@reassociating_loop
def multiply(total, states, matrix, nonzero):
    """Add the product of a sparse vector and a matrix on the grid to `total`.

    `nonzero` is a buffer for the indices of the vector's nonzero entries. Four rows are added at a
    time, so `total` is loaded and stored once for four of them.
    """
    count = 0
    for place in range(len(states)):  # without a branch: the processor cannot predict zeros
        nonzero[count] = place
        count += states[place] != 0.0
    whole = count - count % 4
    for turn in range(0, whole, 4):
        a, b, c, d = nonzero[turn], nonzero[turn + 1], nonzero[turn + 2], nonzero[turn + 3]
        fa, fb, fc, fd = states[a], states[b], states[c], states[d]
        ra, rb, rc, rd = matrix[a], matrix[b], matrix[c], matrix[d]
        for unit in range(len(total)):
            total[unit] += fa * ra[unit] + fb * rb[unit] + fc * rc[unit] + fd * rd[unit]
    for turn in range(whole, count):
        add(total, states[nonzero[turn]], matrix[nonzero[turn]])
