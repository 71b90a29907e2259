"""Walk users through time: predict -> reveal -> refresh the sketch.

The protocol of the whole library, in one place. For every interaction t = 0, 1, ... of a user, the
sketch of what came before predicts it, then it is revealed, then, when the schedule says so, the
sketch is refreshed. (Equations 1-2 of the paper; its Algorithm 1 adapts on the sketch before, one
step late.) The first K are all kept; then candidates are always K + period. Every prediction
counts, t = 0 with its empty sketch included. Knows nothing about gradients, metrics or files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from dips.numerics.cuda_graph import CapturedGraph
from dips.policy.base import Policy
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.rollout import compiled
from dips.rollout.trace import FullHistoryTrace, RecordedInputs, StoredTrace, Trace
from dips.sketch.records import Candidates, Sketch, empty
from dips.sketch.selection import Greedy, Selector
from dips.sketch.signals import Signals
from dips.sketch.update import decide, join
from dips.stream.schedule import Schedule
from dips.stream.users import Stream

BEYOND = 1 << 40
"""A time that no user reaches."""
WORTH_RECORDING = 4
"""Refreshes of one shape from which on recording them pays."""


def rollout(
    stream: Stream,
    policy: Policy,
    *,
    size: int,
    schedule: Schedule,
    keys: Tensor,
    recommenders: StackedRecommenders | None = None,
    selector: Selector | None = None,
    with_scores: bool = False,
    noted: Sequence[str] | None = None,
) -> Trace:
    """Walk all users of all runs in lockstep; return every prediction's sketch.

    `keys` [runs, users] from `stream.keys`; `recommenders` answer the policy's questions, one per
    run. Each step is one batched call of the policy over the users who are still active. Given
    names of signals to note, the trace tells what the policy was asked.
    """
    if policy.keeps_all:
        return FullHistoryRollout(stream).trace
    walk = Rollout(
        stream,
        size=size,
        schedule=schedule,
        keys=keys,
        selector=selector,
        with_scores=with_scores,
        noted=noted,
    )
    walk.advance(policy, recommenders)
    return walk.trace


class Rollout:
    """All users of all runs on their way: what they remember now, and the trace so far."""

    def __init__(
        self,
        stream: Stream,
        *,
        size: int,
        schedule: Schedule,
        keys: Tensor,
        selector: Selector | None = None,
        with_scores: bool = False,
        noted: Sequence[str] | None = None,
    ) -> None:
        self._stream, self._keys = stream, keys
        self._choose = selector or Greedy()
        self._refreshes = _refreshes(stream, size, schedule)
        self._next = next(self._refreshes, None)
        event, user, step, run_rows, self.base, owner = _predictions(stream)
        self._rows = run_rows[-1]
        shape = (self._rows + 1, size)  # the last row takes what belongs nowhere
        self._kept = torch.full(shape, -1, dtype=torch.int32, device=event.device)
        _fill(self._kept, event, step, size)
        self._sketch = _first(stream, size)
        self._repeats = torch.zeros_like(self._kept)
        filled = torch.arange(size, device=event.device) < step[:, None]
        self._repeats[:-1] = (self._sketch.repeats.int()[owner]) * filled
        rows = slice(0, self._rows)
        self.trace = StoredTrace(
            stream.columns, event, user, step, run_rows, self._kept[rows], self._repeats[rows],
            self._sketch,
        )  # fmt: skip
        self._worth: tuple[Tensor, Tensor] | None = None
        if with_scores:
            unknown = torch.full(shape, torch.nan, device=event.device)
            self._worth = unknown, torch.full_like(self._sketch.rating, torch.nan)
            self.trace.scores, self.trace.final_scores = unknown[rows], self._worth[1]
        self._notes: RecordedInputs | None = None
        if noted is not None:
            blank = torch.zeros(shape[0], size + schedule.longest, device=event.device)
            answers = {name: blank.clone() for name in noted}
            self._notes = RecordedInputs(owner, keys.flatten()[owner], answers)
            self.trace.asked = self._notes.part(rows)

    @torch.no_grad()
    def advance(
        self, policy: Policy, recommenders: StackedRecommenders | None = None, until: int = BEYOND
    ) -> None:
        """Refresh the sketches from which predictions before step `until` are made."""
        asked = recommenders if policy.required_signals else None
        due = []
        while self._next is not None and self._next[0] < until:
            due.append(self._next)
            self._next = next(self._refreshes, None)
        if self._fused(policy, asked, due):
            return
        quantized = None if asked is None else asked.quantized()
        times = Counter(shape for _, shape in due)
        ready: dict[tuple[int, int, int], Callable[[Tensor], None]] = {}
        for seen, shape in due:
            now = torch.full((), seen, dtype=torch.int64, device=self._kept.device)
            if shape not in ready:
                ready[shape] = self._transition(policy, quantized, *shape)
                if times[shape] >= WORTH_RECORDING:
                    ready[shape] = CapturedGraph(ready[shape], torch.full_like(now, BEYOND))
            ready[shape](now)

    def _fused(
        self,
        policy: Policy,
        asked: StackedRecommenders | None,
        due: list[tuple[int, tuple[int, int, int]]],
    ) -> bool:
        """All these refreshes at once, if that is possible."""
        refreshes = [(seen, period, hold) for seen, (period, hold, _) in due]
        return compiled.advance(
            policy, asked, self._choose, self._stream, self.base, refreshes,
            self._sketch, self._kept, self._repeats, self._worth, self._notes,
        )  # fmt: skip

    def _transition(
        self,
        policy: Policy,
        quantized: StackedRecommenders | None,
        period: int,
        hold: int,
        count: int,
    ) -> Callable[[Tensor], None]:
        """One refresh of the first `count` users of every run, and the `hold` predictions after."""
        rows = _Rows(self._stream, count)
        first_row, key = rows.flat(self.base), rows.flat(self._keys)
        size = self._kept.shape[1]

        def transition(seen: Tensor) -> None:
            before, arrivals = rows.of(self._sketch), rows.arrivals(seen, period)
            signals = Signals()

            def score(sketch: Sketch, candidates: Candidates) -> Tensor:
                nonlocal signals
                if quantized is not None:
                    signals = recommender_signals(quantized, sketch, candidates)
                return policy.score(candidates, signals)

            fresh, scores = decide(before, arrivals, rows.seen(seen), key, score, self._choose)
            rows.put(self._sketch, fresh, seen)
            if self._worth is not None:
                rows.put((self._worth[1],), (scores.float(),), seen)
            places = torch.where(fresh.present, rows.start[:, None] + fresh.position, -1).int()
            met = fresh.repeats.int()
            for t in range(hold):
                counts = (rows.length > seen + t) & (rows.warmup <= seen + t)
                slot = torch.where(counts, first_row + seen + t, self._rows)
                self._kept[slot] = places
                self._repeats[slot] = met
                if self._worth is not None:
                    self._worth[0][slot] = scores.float()
                if self._notes is not None and t == 0:
                    for name, kept in self._notes.answers.items():
                        kept[slot, : size + period] = signals.computed[name].float()

        return transition


class FullHistoryRollout:
    """Users who remember everything: there is nothing to refresh on their way."""

    def __init__(self, stream: Stream) -> None:
        event, user, step, run_rows, self.base, _ = _predictions(stream)
        self.trace = FullHistoryTrace(stream.columns, event, user, step, run_rows)

    def advance(
        self, policy: Policy, recommenders: StackedRecommenders | None = None, until: int = BEYOND
    ) -> None:
        """Stay as they are."""


def _refreshes(
    stream: Stream, size: int, schedule: Schedule
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Every refresh: seen, and (period, predictions until the next one, active users).

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
        yield seen, (period, following, count)


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
            columns.side[place],
        )

    def _split(self, field: Tensor) -> Tensor:
        return field.view(self.stream.runs, -1, *field.shape[1:])


def _predictions(stream: Stream) -> tuple[Tensor, Tensor, Tensor, list[int], Tensor, Tensor]:
    """Event, user and step of every prediction that counts; where runs and users start; owners."""
    warmup = stream.warmup.flatten()
    counted = stream.length.flatten() - warmup
    starts = torch.cumsum(counted, 0) - counted
    owner = torch.repeat_interleave(torch.arange(len(counted), device=counted.device), counted)
    step = torch.arange(len(owner), device=counted.device) - starts[owner] + warmup[owner]
    event = stream.start.flatten()[owner] + step
    run_rows = [0, *torch.cumsum(counted.view(stream.runs, -1).sum(1), 0).tolist()]
    base = (starts - warmup).view(stream.runs, -1)  # the row of a user's prediction t is base + t
    return event, stream.user.flatten()[owner], step, run_rows, base, owner


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
        torch.where(present, columns.side[event], 0),
    )
    nothing = empty(len(start), 1, start.device)
    joined = join(nothing, arrivals, length, length)
    return Sketch(*(field[:, 1:].contiguous() for field in joined.entries))
