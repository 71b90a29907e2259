"""Walk users through time: predict -> reveal -> refresh the sketch.

The protocol of the whole library, in one place. For every interaction t = 0, 1, ... of a user, the
sketch of what came before predicts it, then it is revealed, then, when the schedule says so, the
sketch is refreshed. (Equations 1-2 of the paper; its Algorithm 1 adapts on the sketch before, one
step late.) The first K are all kept; then candidates are always K + period. Every prediction
counts, t = 0 with its empty sketch included. Knows nothing about gradients, metrics or files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.numerics.recorded import Recorded
from dips.policy.base import NoSignals, Policy
from dips.recommender.base import Evidence
from dips.recommender.signals import StackSignals
from dips.recommender.stack import Stack
from dips.sketch.records import Candidates, Sketch, empty
from dips.sketch.selection import Greedy, Selector
from dips.sketch.update import decide, join
from dips.stream.schedule import Schedule
from dips.stream.users import Columns, Stream

BEYOND = 1 << 40
"""A time that no user reaches."""


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
        item = torch.where(present, self.columns.item[place], 0)
        return Evidence(item, self.columns.rating[place] * weight, weight, present.sum(-1))


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
    final: Sketch | None  # [runs * users, size] after the last refresh, in the stream's order
    scores: Tensor | None = None  # [rows, size] at the refresh that kept them; NaN before the first
    final_scores: Tensor | None = None  # [runs * users, size]

    @property
    def width(self) -> int:
        """K."""
        return self.kept.shape[1]

    def sketches(self, rows: Tensor) -> Tensor:
        """Look them up."""
        return self.kept[rows]

    def part(self, first: int, last: int) -> StoredTrace:
        """Slice everything."""
        rows, run_rows = _slice(self.run_rows, first, last)
        final = None
        if self.final is not None:
            users = len(self.final.position) // self.runs
            final = Sketch(*(field[first * users : last * users] for field in self.final))
        fields = (self.event[rows], self.user[rows], self.step[rows])
        return StoredTrace(self.columns, *fields, run_rows, self.kept[rows], final)


@final
@dataclass(eq=False)
class WholeTrace(Trace):
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

    def part(self, first: int, last: int) -> WholeTrace:
        """Slice everything."""
        rows, run_rows = _slice(self.run_rows, first, last)
        fields = (self.event[rows], self.user[rows], self.step[rows])
        return WholeTrace(self.columns, *fields, run_rows)


def _slice(run_rows: list[int], first: int, last: int) -> tuple[slice, list[int]]:
    """Where these runs' rows lie, and where each of them starts in there."""
    low, high = run_rows[first], run_rows[last]
    return slice(low, high), [row - low for row in run_rows[first : last + 1]]


def rollout(
    stream: Stream,
    policy: Policy,
    *,
    size: int,
    schedule: Schedule,
    keys: Tensor,
    recommenders: Stack | None = None,
    selector: Selector | None = None,
    with_scores: bool = False,
) -> Trace:
    """Walk all users of all runs in lockstep; return every prediction's sketch.

    `keys` [runs, users] from `stream.keys`; `recommenders` answer the policy's questions, one per
    run. Each step is one batched call of the policy over the users who are still active.
    """
    event, user, step, run_rows, base = _predictions(stream)
    if policy.unlimited:
        return WholeTrace(stream.columns, event, user, step, run_rows)
    settled = recommenders.settled() if recommenders is not None and policy.asks else None
    choose = selector or Greedy()

    def score(sketch: Sketch, candidates: Candidates) -> Tensor:
        signals = NoSignals() if settled is None else StackSignals(settled, sketch, candidates)
        return policy.score(candidates, signals)

    kept = torch.full((run_rows[-1] + 1, size), -1, dtype=torch.int32, device=event.device)
    _fill(kept, event, step, size)
    sketch = _first(stream, size)
    worth = torch.full(kept.shape if with_scores else (1, 1), torch.nan, device=event.device)
    last_worth = torch.full_like(sketch.rating, torch.nan)

    def advance(count: int, period: int, hold: int) -> Callable[[Tensor], None]:
        """One refresh of the first `count` users of every run, and the `hold` predictions after."""
        rows = _Rows(stream, count)
        first_row, key = rows.flat(base), rows.flat(keys)

        def transition(seen: Tensor) -> None:
            before, arrivals = rows.of(sketch), rows.arrivals(seen, period)
            fresh, scores = decide(before, arrivals, rows.seen(seen), key, score, choose)
            rows.put(sketch, fresh, seen)
            if with_scores:
                rows.put((last_worth,), (scores.float(),), seen)
            places = torch.where(fresh.present, rows.start[:, None] + fresh.position, -1).int()
            for t in range(hold):
                counts = (rows.length > seen + t) & (rows.warmup <= seen + t)
                slot = torch.where(counts, first_row + seen + t, run_rows[-1])
                kept[slot] = places
                if with_scores:
                    worth[slot] = scores.float()

        return transition

    recorded: dict[tuple[int, int, int], Recorded] = {}
    for seen, period, hold, count in _steps(stream, size, schedule):
        if (count, period, hold) not in recorded:
            never = torch.full((), BEYOND, dtype=torch.int64, device=event.device)
            recorded[count, period, hold] = Recorded(advance(count, period, hold), never)
        recorded[count, period, hold](torch.full_like(never, seen))
    trace = StoredTrace(stream.columns, event, user, step, run_rows, kept[:-1], sketch)
    if with_scores:
        trace.scores, trace.final_scores = worth[:-1], last_worth
    return trace


def _steps(stream: Stream, size: int, schedule: Schedule) -> Iterator[tuple[int, int, int, int]]:
    """(seen, period, predictions until the next refresh, active users) of every refresh.

    On CUDA the number of active users is rounded up, so that few shapes occur; those who are not
    there any more change nothing.
    """
    lengths = stream.length.max(0).values.cpu()
    refreshes = list(schedule.refreshes(size, stream.longest))
    for index, (seen, period) in enumerate(refreshes):
        following = schedule.periods[(index + 1) % len(schedule.periods)]
        count = int((lengths >= seen).sum())
        if stream.start.is_cuda:
            count = min(1 << (count - 1).bit_length(), len(lengths))
        yield seen, period, following, count


class _Rows:
    """The first `count` users of every run, as one flat batch."""

    def __init__(self, stream: Stream, count: int) -> None:
        self.stream, self.users = stream, count
        self.start = self.flat(stream.start)
        self.length = self.flat(stream.length)
        self.warmup = self.flat(stream.warmup)

    def flat(self, field: Tensor) -> Tensor:
        """[runs, users, ...] -> [runs * count, ...]."""
        return field[:, : self.users].flatten(0, 1)

    def of(self, sketch: Sketch) -> Sketch:
        """Their sketches."""
        return Sketch(*(self.flat(self._split(field)) for field in sketch))

    def put(self, fields: Sequence[Tensor], fresh: Sequence[Tensor], seen: Tensor) -> None:
        """Write back what belongs to those who have come this far."""
        arrived = (self.length >= seen)[:, None]
        for field, new in zip(fields, fresh, strict=True):
            value = torch.where(arrived, new, self.flat(self._split(field)))
            self._split(field)[:, : self.users] = self._split(value)

    def seen(self, seen: Tensor) -> Tensor:
        """How many interactions each has had."""
        return seen.expand_as(self.start)

    def arrivals(self, seen: Tensor, period: int) -> Sketch:
        """The newest `period` of the first `seen` interactions."""
        position = seen - period + torch.arange(period, device=self.start.device)
        columns = self.stream.columns
        place = (self.start[:, None] + position).clamp_max(len(columns.item) - 1)
        return Sketch(
            position.expand_as(place),
            columns.item[place],
            columns.rating[place],
            columns.time[place],
            torch.ones_like(place),
        )

    def _split(self, field: Tensor) -> Tensor:
        return field.view(self.stream.runs, -1, *field.shape[1:])


def _predictions(stream: Stream) -> tuple[Tensor, Tensor, Tensor, list[int], Tensor]:
    """Event, user and step of every prediction that counts, where runs start, where users start."""
    warmup = stream.warmup.flatten()
    counted = stream.length.flatten() - warmup
    starts = torch.cumsum(counted, 0) - counted
    owner = torch.repeat_interleave(torch.arange(len(counted), device=counted.device), counted)
    step = torch.arange(len(owner), device=counted.device) - starts[owner] + warmup[owner]
    event = stream.start.flatten()[owner] + step
    run_rows = [0, *torch.cumsum(counted.view(stream.runs, -1).sum(1), 0).tolist()]
    base = (starts - warmup).view(stream.runs, -1)  # the row of a user's prediction t is base + t
    return event, stream.user.flatten()[owner], step, run_rows, base


def _fill(kept: Tensor, event: Tensor, step: Tensor, size: int) -> None:
    """Before the first refresh the sketch is the first `size` events, or as many as there are."""
    place = torch.arange(size, device=step.device)
    first = (event - step)[:, None] + place
    kept[:-1] = torch.where(place < step[:, None], first, -1).int()


def _first(stream: Stream, size: int) -> Sketch:
    """[runs * users, size] sketches of the first `size` events."""
    start, length = stream.start.flatten(), stream.length.flatten()
    place = torch.arange(size, device=start.device)
    present = place < length[:, None]
    event = torch.where(present, start[:, None] + place, 0)
    columns = stream.columns
    arrivals = Sketch(
        torch.where(present, place, -1),
        torch.where(present, columns.item[event], 0),
        torch.where(present, columns.rating[event], 0.0),
        torch.where(present, columns.time[event], 0),
        present.long(),
    )
    nothing = empty(len(start), 1, start.device)
    joined = join(nothing, arrivals, length, length)
    return Sketch(*(field[:, 1:].contiguous() for field in joined.entries))


def concatenate(traces: Sequence[StoredTrace]) -> StoredTrace:
    """Put traces over the same columns one after the other, narrower sketches padded."""
    width = max(trace.kept.shape[1] for trace in traces)
    kept = [torch.nn.functional.pad(t.kept, (0, width - t.kept.shape[1]), value=-1) for t in traces]
    run_rows = [0]
    for trace in traces:
        offset = run_rows[-1]
        run_rows += [offset + rows for rows in trace.run_rows[1:]]
    return StoredTrace(
        traces[0].columns,
        torch.cat([trace.event for trace in traces]),
        torch.cat([trace.user for trace in traces]),
        torch.cat([trace.step for trace in traces]),
        run_rows,
        torch.cat(kept),
        None,
    )
