"""Roll users forward in time: record the sketch from which each interaction is predicted.

Nothing is predicted here. The trace has a row for every prediction t of a user: the sketch of the
interactions before t. The protocol of the library is defined here:

- A refresh happens after `seen` interactions, where the schedule says so. Its sketch fills rows
  seen, seen + 1, ... up to the next refresh. So row t holds positions < t only
  (`test_only_the_past_and_all_of_it` in tests/rollout/test_rollout.py).
- This follows Eqs. 1-2 of the paper: adapt on S_t to predict x_{t+1}. The paper's Algorithm 1 is
  off by one: it adapts on S_{t-1}.
- The first K interactions are all kept. After that a refresh has K + period candidates.
- Every prediction counts, also t = 0 with its empty sketch.

Knows nothing about gradients, metrics or files.
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

NO_STEP = 1 << 40
"""A step that no history reaches."""
MIN_REFRESHES_TO_CAPTURE = 4
"""Refreshes of one shape from which on capturing a CUDA graph pays."""


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
    recorded_signals: Sequence[str] | None = None,
) -> Trace:
    """Roll out all users of all runs; return the sketch of every prediction.

    Args:
        stream: The users of all runs.
        policy: One policy, or the policies of all runs.
        size: Entries of a sketch (K).
        schedule: When sketches are refreshed.
        keys: [runs, users] keys of random priorities, from `stream.keys`.
        recommenders: One per run; needed if the policy reads signals.
        selector: How the kept entries are selected from scores; default: the K highest.
        with_scores: Whether the trace records the scores of the kept entries.
        recorded_signals: Signals that the trace records beside the inputs of the decisions; None
            records no inputs.

    Returns:
        The trace. Users with the policy `all` have a `FullHistoryTrace`.
    """
    if policy.keeps_all:
        return FullHistoryRollout(stream).trace
    rolled = Rollout(
        stream,
        size=size,
        schedule=schedule,
        keys=keys,
        selector=selector,
        with_scores=with_scores,
        recorded_signals=recorded_signals,
    )
    rolled.advance(policy, recommenders)
    return rolled.trace


class Rollout:
    """All users of all runs at some step: their current sketches, and the trace so far.

    See `rollout` for the arguments.

    Attributes:
        trace: Every prediction and its sketch; rows beyond the last refresh are not valid yet.
        base: [runs, users] prediction t of a user is row base + t of the trace.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        size: int,
        schedule: Schedule,
        keys: Tensor,
        selector: Selector | None = None,
        with_scores: bool = False,
        recorded_signals: Sequence[str] | None = None,
    ) -> None:
        self._stream, self._keys = stream, keys
        self._selector = selector or Greedy()
        self._refreshes = _refreshes(stream, size, schedule)
        self._next = next(self._refreshes, None)
        event, user, step, run_rows, self.base, owner = _predictions(stream)
        self._rows = run_rows[-1]
        shape = (self._rows + 1, size)  # writes of inactive users go to the last row
        self._kept = torch.full(shape, -1, dtype=torch.int32, device=event.device)
        _fill(self._kept, event, step, size)
        self._sketch = _first_sketches(stream, size)
        self._repeats = torch.zeros_like(self._kept)
        filled = torch.arange(size, device=event.device) < step[:, None]
        self._repeats[:-1] = (self._sketch.repeats.int()[owner]) * filled
        rows = slice(0, self._rows)
        self.trace = StoredTrace(
            stream.columns, event, user, step, run_rows, self._kept[rows], self._repeats[rows],
            self._sketch,
        )  # fmt: skip
        self._scores: tuple[Tensor, Tensor] | None = None
        if with_scores:
            unknown = torch.full(shape, torch.nan, device=event.device)
            self._scores = unknown, torch.full_like(self._sketch.rating, torch.nan)
            self.trace.scores, self.trace.final_scores = unknown[rows], self._scores[1]
        self._inputs: RecordedInputs | None = None
        if recorded_signals is not None:
            blank = torch.zeros(shape[0], size + schedule.longest, device=event.device)
            signals = {name: blank.clone() for name in recorded_signals}
            self._inputs = RecordedInputs(owner, keys.flatten()[owner], signals)
            self.trace.inputs = self._inputs.part(rows)

    @torch.no_grad()
    def advance(
        self, policy: Policy, recommenders: StackedRecommenders | None = None, until: int = NO_STEP
    ) -> None:
        """Refresh the sketches from which predictions before step `until` are made.

        Args:
            policy: One policy, or the policies of all runs.
            recommenders: One per run; needed if the policy reads signals.
            until: First step whose sketch is left as it is.
        """
        needed = recommenders if policy.required_signals else None
        due = []
        while self._next is not None and self._next[0] < until:
            due.append(self._next)
            self._next = next(self._refreshes, None)
        if self._advance_compiled(policy, needed, due):
            return
        quantized = None if needed is None else needed.quantized()
        times = Counter(shape for _, shape in due)
        ready: dict[tuple[int, int, int], Callable[[Tensor], None]] = {}
        for seen, shape in due:
            now = torch.full((), seen, dtype=torch.int64, device=self._kept.device)
            if shape not in ready:
                ready[shape] = self._transition(policy, quantized, *shape)
                if times[shape] >= MIN_REFRESHES_TO_CAPTURE:
                    ready[shape] = CapturedGraph(ready[shape], torch.full_like(now, NO_STEP))
            ready[shape](now)

    def _advance_compiled(
        self,
        policy: Policy,
        recommenders: StackedRecommenders | None,
        due: list[tuple[int, tuple[int, int, int]]],
    ) -> bool:
        """Compute all these refreshes with kernels; return False if that is not supported."""
        refreshes = [(seen, period, following) for seen, (period, following, _) in due]
        return compiled.advance(
            policy, recommenders, self._selector, self._stream, self._keys, self.base, refreshes,
            self._sketch, self._kept, self._repeats, self._scores, self._inputs,
        )  # fmt: skip

    def _transition(
        self,
        policy: Policy,
        quantized: StackedRecommenders | None,
        period: int,
        following: int,
        count: int,
    ) -> Callable[[Tensor], None]:
        """Return a refresh of the first `count` users of each run, recorded `following` times."""
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

            fresh, scores = decide(before, arrivals, rows.seen(seen), key, score, self._selector)
            rows.put(self._sketch, fresh, seen)
            if self._scores is not None:
                rows.put((self._scores[1],), (scores.float(),), seen)
            events = torch.where(fresh.present, rows.start[:, None] + fresh.position, -1).int()
            repeats = fresh.repeats.int()
            for t in range(following):
                counts = (rows.length > seen + t) & (rows.warmup <= seen + t)
                row = torch.where(counts, first_row + seen + t, self._rows)
                self._kept[row] = events
                self._repeats[row] = repeats
                if self._scores is not None:
                    self._scores[0][row] = scores.float()
                if self._inputs is not None and t == 0:
                    for name, record in self._inputs.signals.items():
                        record[row, : size + period] = signals.computed[name].float()

        return transition


class FullHistoryRollout:
    """All users of all runs under the policy `all`: sketches are whole histories.

    Attributes:
        trace: Every prediction; its sketch is the history before it.
        base: [runs, users] prediction t of a user is row base + t of the trace.
    """

    def __init__(self, stream: Stream) -> None:
        event, user, step, run_rows, self.base, _ = _predictions(stream)
        self.trace = FullHistoryTrace(stream.columns, event, user, step, run_rows)

    def advance(
        self, policy: Policy, recommenders: StackedRecommenders | None = None, until: int = NO_STEP
    ) -> None:
        """Do nothing: whole histories are never refreshed."""


def _refreshes(
    stream: Stream, size: int, schedule: Schedule
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield every refresh: seen, and (period, predictions until the next one, active users).

    On CUDA the number of active users is rounded up, so few shapes occur. Users whose history has
    ended change nothing.
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
    """Read and write the first `count` users of every run as one flat batch."""

    def __init__(self, stream: Stream, count: int) -> None:
        self.stream, self.users = stream, count
        self.start = self.flat(stream.start)
        self.length = self.flat(stream.length)
        self.warmup = self.flat(stream.warmup)

    def flat(self, field: Tensor) -> Tensor:
        """Return a field [runs, users, ...] as [runs * count, ...]."""
        return field[:, : self.users].flatten(0, 1)

    def of(self, sketch: Sketch) -> Sketch:
        """Return their sketches."""
        return Sketch(*(self.flat(self._split(field)) for field in sketch))

    def put(self, fields: Sequence[Tensor], fresh: Sequence[Tensor], seen: Tensor) -> None:
        """Write new values for users with at least `seen` interactions."""
        arrived = (self.length >= seen)[:, None]
        for field, new in zip(fields, fresh, strict=True):
            value = torch.where(arrived, new, self.flat(self._split(field)))
            self._split(field)[:, : self.users] = self._split(value)

    def seen(self, seen: Tensor) -> Tensor:
        """Return the number of interactions of each user so far."""
        return seen.expand_as(self.start)

    def arrivals(self, seen: Tensor, period: int) -> Sketch:
        """Return the newest `period` of the first `seen` interactions."""
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
    """Return event, user and step of every prediction that counts, run_rows, base and owner."""
    warmup = stream.warmup.flatten()
    counted = stream.length.flatten() - warmup
    starts = torch.cumsum(counted, 0) - counted
    owner = torch.repeat_interleave(torch.arange(len(counted), device=counted.device), counted)
    step = torch.arange(len(owner), device=counted.device) - starts[owner] + warmup[owner]
    event = stream.start.flatten()[owner] + step
    run_rows = [0, *torch.cumsum(counted.view(stream.runs, -1).sum(1), 0).tolist()]
    base = (starts - warmup).view(stream.runs, -1)  # prediction t is row base + t
    return event, stream.user.flatten()[owner], step, run_rows, base, owner


def _fill(kept: Tensor, event: Tensor, step: Tensor, size: int) -> None:
    """Write the sketches before the first refresh: the first `size` events, or fewer."""
    place = torch.arange(size, device=step.device)
    first = (event - step)[:, None] + place
    kept[:-1] = torch.where(place < step[:, None], first, -1).int()


def _first_sketches(stream: Stream, size: int) -> Sketch:
    """Return sketches of the first `size` events, [runs * users, size]."""
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
