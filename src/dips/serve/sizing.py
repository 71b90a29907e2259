"""How many bytes a user costs: the length of an ordinary record, by encoding one."""

from __future__ import annotations

import numpy as np

from dips.serve.records import Rows, encode

NOON = 1_600_000_000
"""A time as sources have it: seconds since 1970."""


def record_bytes(size: int, every: int = 1, *, rated: bool) -> int:
    """The most bytes that the record of a user takes between two refreshes.

    Ordinary values: a time each, some repeats, stars where there are ratings.
    """
    slots = size + every - 1
    one = np.ones(1, np.int64)
    row = np.arange(slots, dtype=np.int64)[None]
    rows = Rows(
        kept=size * one,
        waiting=(every - 1) * one,
        policy=one,
        seen=1000 * one,
        last=one,
        item=row,
        rating=np.full((1, slots), 3.5 if rated else 1.0, np.float32),
        time=NOON + row,
        position=row,
        repeats=1 + row % 2,
        side=np.zeros_like(row),
    )
    return len(encode([b"user"], rows)[0])
