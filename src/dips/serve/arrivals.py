"""A batch of events as columns, and in which order they are applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from dips.serve.events import Event, Rules
from dips.sketch.records import Sketch


def arrivals_of(events: Sequence[Event], code: Sequence[int], rules: Rules) -> Sketch:
    """The events as columns; positions are given when they arrive."""
    rating = [1.0 if event.rating is None else event.rating for event in events]
    time = [event.time or 0 for event in events]
    item = torch.from_numpy(np.array(code, np.int64))
    return Sketch(
        torch.full_like(item, -1),
        item,
        torch.from_numpy(np.array(rating, np.float64)).float(),
        torch.from_numpy(np.array(time, np.int64)),
        torch.ones_like(item),
        torch.from_numpy(rules.pack(events)),
    )


def rounds(row: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Places of the first event of every row, then of the second, and so on."""
    if len(row) == 0:
        return
    order = np.argsort(row, kind="stable")
    start = np.flatnonzero(np.diff(row[order], prepend=-1))
    turn = np.arange(len(row)) - np.repeat(start, np.diff(start, append=len(row)))
    by_turn = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    yield from np.split(order[by_turn], ends[:-1])
