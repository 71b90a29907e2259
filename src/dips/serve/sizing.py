"""Compute how many bytes a user takes, by encoding a typical record."""

from __future__ import annotations

import numpy as np

from dips.serve.records import UserRecords, encode

TYPICAL_TIME = 1_600_000_000
"""A time in seconds since 1970."""


def record_bytes(size: int, every: int = 1, *, rated: bool) -> int:
    """Return the most bytes that a typical record of a user takes between two refreshes.

    The typical record has times, some repeated items, and half stars where there are ratings.

    Args:
        size: Number of entries in a sketch.
        every: Interactions between two refreshes.
        rated: Whether interactions have ratings.

    Returns:
        Number of bytes.
    """
    slots = size + every - 1
    one = np.ones(1, np.int64)
    row = np.arange(slots, dtype=np.int64)[None]
    records = UserRecords(
        kept=size * one,
        waiting=(every - 1) * one,
        policy=one,
        seen=1000 * one,
        next_seq=one,
        item=row,
        rating=np.full((1, slots), 3.5 if rated else 1.0, np.float32),
        time=TYPICAL_TIME + row,
        position=row,
        repeats=1 + row % 2,
        side=np.zeros_like(row),
    )
    return len(encode([b"user"], records)[0])
