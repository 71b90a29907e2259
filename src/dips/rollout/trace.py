"""Traces: every prediction of a rollout, and the sketch from which it is made.

Knows nothing of policies or recommenders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from dips.recommender.base import Evidence
from dips.sketch.records import Sketch
from dips.stream.users import EventColumns


class Trace(ABC):
    """All predictions of a rollout: the predicted event and the sketch of each.

    Rows are in run-major order. Run r has rows `run_rows[r]` to `run_rows[r + 1]`.
    """

    columns: EventColumns
    event: Tensor  # [rows] the predicted event, as an index into the columns
    user: Tensor  # [rows] the user's index in its part
    step: Tensor  # [rows] t: how many events came before
    run_rows: list[int]

    @abstractmethod
    def sketches(self, rows: Tensor) -> Tensor:
        """Return the events in the sketches of rows, [..., size], oldest first; -1: empty."""

    @abstractmethod
    def repeats_of(self, rows: Tensor) -> Tensor:
        """Return the repeat counts of the entries of `sketches(rows)`, [..., size]."""

    @abstractmethod
    def part(self, first: int, last: int) -> Trace:
        """Return the runs from `first` up to, without, `last`, as a view."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Return the most entries of a sketch."""

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return len(self.run_rows) - 1

    def evidence(self, rows: Tensor) -> Evidence:
        """Return the sketches of predictions in the form that a recommender reads."""
        events = self.sketches(rows)
        present = events >= 0
        place = events.clamp_min(0).long()
        weight = present.to(self.columns.rating.dtype)
        item = torch.where(present, self.columns.token[place], 0)
        rating = self.columns.rating[place] * weight
        age = torch.where(present, self.event[rows][..., None] - 1 - place, 0).to(weight.dtype)
        repeats = torch.where(present, self.repeats_of(rows), 1).to(weight.dtype)
        return Evidence(item, rating, weight, present.sum(-1), age, repeats)

    @cached_property
    def longest(self) -> int:
        """Number of events before the latest prediction."""
        return int(self.step.max()) if len(self.step) else 0

    def seen_items(self, rows: Tensor, *, filtered: bool = True) -> Tensor:
        """Return the items that users had met before predictions, [..., n]; -1 pads.

        Args:
            rows: Rows of the trace, [...].
            filtered: Whether the recommender filters them (`masks_seen`). If not, n is 0.
        """
        if not filtered:
            return rows.new_zeros(*rows.shape, 0)
        step = self.step[rows]
        width = self.longest  # on a GPU: a CUDA graph has fixed shapes
        if not step.is_cuda:
            width = int(step.max()) if step.numel() else 0
        place = torch.arange(width, device=step.device)
        known = place < step[..., None]
        event = (self.event[rows] - step)[..., None] + place
        return torch.where(known, self.columns.item[torch.where(known, event, 0)].long(), -1)


@dataclass(eq=False)
class RecordedInputs:
    """Inputs of a policy's decisions beside the sketches: with them a decision can be repeated."""

    owner: Tensor  # [rows] index of the user among all users of all runs
    key: Tensor  # [rows] the user's key of random priorities
    signals: dict[str, Tensor]  # [rows, candidates], on a refresh's first prediction

    def part(self, rows: slice) -> RecordedInputs:
        """Return the inputs of some rows."""
        signals = {name: value[rows] for name, value in self.signals.items()}
        return RecordedInputs(self.owner[rows], self.key[rows], signals)


@final
@dataclass(eq=False)
class StoredTrace(Trace):
    """The trace of a policy with a size limit: K stored events per prediction."""

    columns: EventColumns
    event: Tensor
    user: Tensor
    step: Tensor
    run_rows: list[int]
    kept: Tensor  # [rows, size] int32 events
    repeats: Tensor  # [rows, size] int32: repeat count of the item while it was kept
    final: Sketch | None  # [runs * users, size] after the last refresh, in the stream's order
    scores: Tensor | None = None  # [rows, size] at the refresh that kept them; NaN before the first
    final_scores: Tensor | None = None  # [runs * users, size]
    inputs: RecordedInputs | None = None

    @property
    def width(self) -> int:
        """Return K."""
        return self.kept.shape[1]

    def sketches(self, rows: Tensor) -> Tensor:
        """Return the stored values."""
        return self.kept[rows]

    def repeats_of(self, rows: Tensor) -> Tensor:
        """Return the stored values."""
        return self.repeats[rows]

    def part(self, first: int, last: int) -> StoredTrace:
        """Return the runs from `first` up to, without, `last`, as a view."""
        rows, run_rows = _slice(self.run_rows, first, last)
        final = None
        if self.final is not None:
            users = len(self.final.position) // self.runs
            final = Sketch(*(field[first * users : last * users] for field in self.final))
        fields = (self.event[rows], self.user[rows], self.step[rows])
        inputs = None if self.inputs is None else self.inputs.part(rows)
        kept = (self.kept[rows], self.repeats[rows])
        return StoredTrace(self.columns, *fields, run_rows, *kept, final, inputs=inputs)


class Histories(NamedTuple):
    """Prefixes of histories, for recommenders that process a history in one pass."""

    item: Tensor  # [users, n] items from the start; 0 pads
    user: Tensor  # [rows] row of `item`
    step: Tensor  # [rows] number of events


@final
@dataclass(eq=False)
class FullHistoryTrace(Trace):
    """The trace of the policy `all`: a sketch is the whole history; none is stored."""

    columns: EventColumns
    event: Tensor
    user: Tensor
    step: Tensor
    run_rows: list[int]

    @property
    def width(self) -> int:
        """Return the length of the longest prefix."""
        return max(1, int(self.step.max()))

    def sketches(self, rows: Tensor) -> Tensor:
        """Return all events before the predicted ones, as wide as the longest of these prefixes."""
        step = self.step[rows][..., None]
        place = torch.arange(max(1, int(step.max())), device=step.device)
        first = self.event[rows][..., None] - step
        return torch.where(place < step, first + place, -1)

    def repeats_of(self, rows: Tensor) -> Tensor:
        """Return ones: every interaction is an entry of its own."""
        return torch.ones_like(self.sketches(rows))

    def histories(self, rows: Tensor) -> Histories:
        """Return the prefixes of predictions [rows] of one run; each history occurs once."""
        step, event = self.step[rows], self.event[rows]
        start, user = torch.unique(event - step, return_inverse=True)
        length = torch.zeros_like(start).scatter_reduce(0, user, step, "amax")
        place = torch.arange(int(length.max()), device=start.device)
        there = place < length[:, None]
        item = self.columns.token[torch.where(there, start[:, None] + place, 0)]
        return Histories(torch.where(there, item, 0), user, step)

    def part(self, first: int, last: int) -> FullHistoryTrace:
        """Return the runs from `first` up to, without, `last`, as a view."""
        rows, run_rows = _slice(self.run_rows, first, last)
        fields = (self.event[rows], self.user[rows], self.step[rows])
        return FullHistoryTrace(self.columns, *fields, run_rows)


def _slice(run_rows: list[int], first: int, last: int) -> tuple[slice, list[int]]:
    """Return the rows of some runs, and the first row of each within them."""
    low, high = run_rows[first], run_rows[last]
    return slice(low, high), [row - low for row in run_rows[first : last + 1]]


def concatenate(traces: Sequence[StoredTrace]) -> StoredTrace:
    """Return one trace with the runs of all traces; narrower sketches are padded.

    Raises:
        ValueError: If the traces do not share their events.
    """
    columns = traces[0].columns
    if any(trace.columns is not columns for trace in traces):
        raise ValueError("traces over different columns cannot be joined: their events differ")
    width = max(trace.kept.shape[1] for trace in traces)
    pads = [(0, width - trace.kept.shape[1]) for trace in traces]
    kept = [pad(trace.kept, more, value=-1) for trace, more in zip(traces, pads, strict=True)]
    repeats = [pad(trace.repeats, more) for trace, more in zip(traces, pads, strict=True)]
    run_rows = [0]
    for trace in traces:
        offset = run_rows[-1]
        run_rows += [offset + rows for rows in trace.run_rows[1:]]
    return StoredTrace(
        columns,
        torch.cat([trace.event for trace in traces]),
        torch.cat([trace.user for trace in traces]),
        torch.cat([trace.step for trace in traces]),
        run_rows,
        torch.cat(kept),
        torch.cat(repeats),
        None,
    )
