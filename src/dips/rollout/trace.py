"""What a walk leaves behind: every prediction, and the sketch it is made from.

Knows nothing of policies or recommenders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from dips.recommender.base import Evidence
from dips.sketch.records import Sketch
from dips.stream.users import Columns


class Trace(ABC):
    """All predictions of a walk: which event each one is about, and the sketch it is made from.

    Rows are in run-major order; `run_rows[r]` is where run r starts, its last entry the total.
    """

    columns: Columns
    event: Tensor  # [rows] the predicted event, as an index into the columns
    user: Tensor  # [rows] the user's index in its part
    step: Tensor  # [rows] t: how many events came before
    run_rows: list[int]

    @abstractmethod
    def sketches(self, rows: Tensor) -> Tensor:
        """[..., size] events in the sketch of these predictions, oldest first; -1 where empty."""

    @abstractmethod
    def repeats_of(self, rows: Tensor) -> Tensor:
        """[..., size] how often each of them was met while it was remembered, as the sketches."""

    @abstractmethod
    def part(self, first: int, last: int) -> Trace:
        """The runs from `first` up to `last`, as a view."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The most entries that a sketch holds."""

    @property
    def runs(self) -> int:
        """How many runs."""
        return len(self.run_rows) - 1

    def evidence(self, rows: Tensor) -> Evidence:
        """The sketches of these predictions as a recommender reads them."""
        events = self.sketches(rows)
        present = events >= 0
        place = events.clamp_min(0).long()
        weight = present.to(self.columns.rating.dtype)
        item = torch.where(present, self.columns.token[place], 0)
        rating = self.columns.rating[place] * weight
        age = torch.where(present, self.event[rows][..., None] - 1 - place, 0).to(weight.dtype)
        repeats = torch.where(present, self.repeats_of(rows), 1).to(weight.dtype)
        return Evidence(item, rating, weight, present.sum(-1), age, repeats)


@dataclass(eq=False)
class RecordedInputs:
    """What a policy saw along a walk, beside the sketches themselves: enough to ask it again."""

    owner: Tensor  # [rows] which of all users of all runs, in the stream's order
    key: Tensor  # [rows] what that user's draws are derived from
    answers: dict[str, Tensor]  # [rows, candidates] signals, on a refresh's first prediction

    def part(self, rows: slice) -> RecordedInputs:
        """Slice everything."""
        answers = {name: value[rows] for name, value in self.answers.items()}
        return RecordedInputs(self.owner[rows], self.key[rows], answers)


@final
@dataclass(eq=False)
class StoredTrace(Trace):
    """The trace of a policy with a limit: K numbers per prediction."""

    columns: Columns
    event: Tensor
    user: Tensor
    step: Tensor
    run_rows: list[int]
    kept: Tensor  # [rows, size] int32 events
    repeats: Tensor  # [rows, size] int32: how often each was met while it was remembered
    final: Sketch | None  # [runs * users, size] after the last refresh, in the stream's order
    scores: Tensor | None = None  # [rows, size] at the refresh that kept them; NaN before the first
    final_scores: Tensor | None = None  # [runs * users, size]
    asked: RecordedInputs | None = None

    @property
    def width(self) -> int:
        """K."""
        return self.kept.shape[1]

    def sketches(self, rows: Tensor) -> Tensor:
        """Look them up."""
        return self.kept[rows]

    def repeats_of(self, rows: Tensor) -> Tensor:
        """Look them up."""
        return self.repeats[rows]

    def part(self, first: int, last: int) -> StoredTrace:
        """Slice everything."""
        rows, run_rows = _slice(self.run_rows, first, last)
        final = None
        if self.final is not None:
            users = len(self.final.position) // self.runs
            final = Sketch(*(field[first * users : last * users] for field in self.final))
        fields = (self.event[rows], self.user[rows], self.step[rows])
        asked = None if self.asked is None else self.asked.part(rows)
        kept = (self.kept[rows], self.repeats[rows])
        return StoredTrace(self.columns, *fields, run_rows, *kept, final, asked=asked)


class Histories(NamedTuple):
    """Prefixes of histories, for recommenders that read a history in one pass."""

    item: Tensor  # [users, n] what each did, from the start; 0 pads
    user: Tensor  # [rows] whose prefix it is
    step: Tensor  # [rows] how many events long


@final
@dataclass(eq=False)
class FullHistoryTrace(Trace):
    """The trace of a policy that keeps everything: the sketch is the prefix; nothing is stored."""

    columns: Columns
    event: Tensor
    user: Tensor
    step: Tensor
    run_rows: list[int]

    @property
    def width(self) -> int:
        """The longest prefix."""
        return max(1, int(self.step.max()))

    def sketches(self, rows: Tensor) -> Tensor:
        """All events before the predicted one, as wide as the longest prefix among the rows."""
        step = self.step[rows][..., None]
        place = torch.arange(max(1, int(step.max())), device=step.device)
        first = self.event[rows][..., None] - step
        return torch.where(place < step, first + place, -1)

    def repeats_of(self, rows: Tensor) -> Tensor:
        """Where nothing is forgotten every interaction stands for itself."""
        return torch.ones_like(self.sketches(rows))

    def histories(self, rows: Tensor) -> Histories:
        """The prefixes of these predictions [rows] of one run, each user's history once."""
        step, event = self.step[rows], self.event[rows]
        start, user = torch.unique(event - step, return_inverse=True)
        length = torch.zeros_like(start).scatter_reduce(0, user, step, "amax")
        place = torch.arange(int(length.max()), device=start.device)
        there = place < length[:, None]
        item = self.columns.token[torch.where(there, start[:, None] + place, 0)]
        return Histories(torch.where(there, item, 0), user, step)

    def part(self, first: int, last: int) -> FullHistoryTrace:
        """Slice everything."""
        rows, run_rows = _slice(self.run_rows, first, last)
        fields = (self.event[rows], self.user[rows], self.step[rows])
        return FullHistoryTrace(self.columns, *fields, run_rows)


def _slice(run_rows: list[int], first: int, last: int) -> tuple[slice, list[int]]:
    """Where these runs' rows lie, and where each of them starts in there."""
    low, high = run_rows[first], run_rows[last]
    return slice(low, high), [row - low for row in run_rows[first : last + 1]]


def concatenate(traces: Sequence[StoredTrace]) -> StoredTrace:
    """Put traces over the same columns one after the other, narrower sketches padded."""
    columns = traces[0].columns
    if any(trace.columns is not columns for trace in traces):
        raise ValueError("traces over different columns cannot be joined: they number events apart")
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
