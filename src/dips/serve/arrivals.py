"""Turn the events of a batch into columns, and split them into rounds of one event per user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dips.data.interactions import Int64
from dips.serve.events import Event, EventSchema
from dips.sketch.records import Sketch


def arrival_columns(events: Sequence[Event], codes: Sequence[int], schema: EventSchema) -> Sketch:
    """Return events as the columns of new sketch entries, each [events].

    Args:
        events: The events to apply.
        codes: Item codes of the events in the store's vocabulary.
        schema: Schema of the model's events.

    Returns:
        The columns. Positions are -1: the engine sets them when it applies the events.
    """
    rating = [1.0 if event.rating is None else event.rating for event in events]
    time = [event.time or 0 for event in events]
    item = torch.from_numpy(np.array(codes, np.int64))
    return Sketch(
        torch.full_like(item, -1),
        item,
        torch.from_numpy(np.array(rating, np.float64)).float(),
        torch.from_numpy(np.array(time, np.int64)),
        torch.ones_like(item),
        torch.from_numpy(schema.pack_side(events)),
    )


def rounds(row: Int64) -> Iterator[Int64]:
    """Yield indices of the first event of every user, then of the second, and so on.

    Args:
        row: Which user each event belongs to, [events].
    """
    if len(row) == 0:
        return
    order = np.argsort(row, kind="stable")
    start = np.flatnonzero(np.diff(row[order], prepend=-1))
    turn = np.arange(len(row)) - np.repeat(start, np.diff(start, append=len(row)))
    by_turn = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    yield from np.split(order[by_turn], ends[:-1])
