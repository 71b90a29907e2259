"""What a policy was asked along a walk, rebuilt from the trace: batches of decisions to learn from.

Decisions are in time order, the users of a run one after the other; -1 pads everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dips.numerics.hashing import combine
from dips.rollout.trace import RecordedInputs, StoredTrace
from dips.sketch.records import Candidates, Sketch
from dips.sketch.update import join
from dips.stream.schedule import Schedule

ORDER = 0xBA7C4
"""Keeps the order in which users teach the policy apart from other draws."""


class PolicyBatch(NamedTuple):
    """A batch of decisions and the predictions that they earn credit from."""

    predicted: Tensor  # [runs, predictions] rows of the trace
    decided: Tensor  # [runs, decisions] the row of each decision's first prediction
    held: Tensor  # [runs, decisions, hold] its predictions, as places in `predicted`


class Clock(NamedTuple):
    """The schedule as tables by step."""

    period: Tensor  # [steps] how many arrivals the refresh at this step had; 0: there is none
    following: Tensor  # [steps] predictions until the next refresh
    longest: int  # the longest period
    refreshes: list[int]  # the steps at which there is one

    @classmethod
    def of(cls, schedule: Schedule, size: int, until: int, device: torch.device) -> Clock:
        """Tables for all steps up to `until`."""
        period, following = torch.zeros(2, until + 1, dtype=torch.int64)
        refreshes = list(schedule.refreshes(size, until))
        for index, (seen, length) in enumerate(refreshes):
            period[seen] = length
            following[seen] = schedule.periods[(index + 1) % len(schedule.periods)]
        steps = [seen for seen, _ in refreshes]
        return cls(period.to(device), following.to(device), schedule.longest, steps)


def pack_policy_batches(
    trace: StoredTrace, clock: Clock, seeds: Sequence[int], epoch: int, width: int
) -> list[PolicyBatch]:
    """All users of a walk in an order of their own, whole histories of about `width` rows each."""
    packed = [
        _packed(trace, run, seed, epoch, width) for run, seed in enumerate(seeds)
    ]  # [batches, rows] each
    batches, rows = max(len(p) for p in packed), max(p.shape[1] for p in packed)
    device = trace.event.device
    predicted = torch.full((batches, len(seeds), rows), -1, dtype=torch.int64, device=device)
    for run, found in enumerate(packed):
        predicted[: len(found), run, : found.shape[1]] = found
    place = predicted.clamp_min(0)
    refreshed = (predicted >= 0) & (clock.period[trace.step[place]] > 0)
    most = max(1, int(refreshed.sum(-1).max()))
    slot = (~refreshed).long().sort(dim=-1, stable=True).indices[..., :most]
    decided = torch.where(refreshed.gather(-1, slot), predicted.gather(-1, slot), -1)
    held = _held(trace, clock, predicted, decided, slot)
    return [PolicyBatch(*fields) for fields in zip(predicted, decided, held, strict=True)]


def _held(
    trace: StoredTrace, clock: Clock, predicted: Tensor, decided: Tensor, slot: Tensor
) -> Tensor:
    """[..., decisions, hold] places of the predictions that follow each decision."""
    asked = _asked(trace)
    hold = torch.arange(clock.longest, device=slot.device)
    width = predicted.shape[-1]
    after = slot[..., None] + hold
    inside = after.clamp_max(width - 1)
    row = predicted.gather(-1, inside.flatten(-2)).reshape(after.shape)
    first = decided.clamp_min(0)
    same = asked.owner[row.clamp_min(0)] == asked.owner[first][..., None]
    until = clock.following[trace.step[first]][..., None]
    good = (hold < until) & (after < width) & (row >= 0) & same & (decided >= 0)[..., None]
    return torch.where(good, inside, -1)


def _packed(trace: StoredTrace, run: int, seed: int, epoch: int, width: int) -> Tensor:
    """[batches, rows] of one run: users in the order of the epoch, as many as fit in a batch."""
    first, last = trace.run_rows[run], trace.run_rows[run + 1]
    user, counts = torch.unique_consecutive(trace.user[first:last], return_counts=True)
    starts = first + counts.cumsum(0) - counts
    order = combine(user, seed, epoch, ORDER).argsort()
    counts, starts = counts[order], starts[order]
    lengths = counts.tolist()
    width = max([width, *lengths])
    slots, end = [], 0
    for length in lengths:
        if end % width + length > width:
            end += -end % width
        slots.append(end)
        end += length
    batches = -(-end // width)
    rows = torch.full((batches * width,), -1, dtype=torch.int64, device=user.device)
    target = torch.tensor(slots, dtype=torch.int64, device=user.device)
    within = torch.arange(last - first, device=user.device)
    within = within - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    places = torch.repeat_interleave(target, counts) + within
    rows[places] = torch.repeat_interleave(starts, counts) + within
    return rows.view(batches, width)[:, :end]


def interval_policy_batch(
    clock: Clock, queue: int, base: Tensor, length: Tensor, span: range
) -> PolicyBatch | None:
    """The predictions of a stretch, and the decisions of the queue that they give credit to.

    `base` and `length` [runs, users]: the row of a user's prediction t is base + t.
    """
    device = base.device
    refreshes = clock.refreshes
    active = [index for index, seen in enumerate(refreshes) if seen <= span.start]
    oldest = max(0, (active[-1] if active else 0) - (queue - 1))
    steps = [seen for seen in refreshes[oldest:] if seen < span.stop]
    if not steps:
        return None
    time = torch.tensor(list(span), device=device)
    predicted = _rows(base, length, time)
    seen = torch.tensor(steps, device=device)
    decided = _rows(base, length, seen)
    hold = torch.arange(clock.longest, device=device)
    t = seen[:, None] + hold  # [decisions, hold]
    good = (hold < clock.following[seen][:, None]) & (t >= span.start) & (t < span.stop)
    good = good & (t < length[:, :, None, None])
    place = torch.arange(base.shape[1], device=device)[:, None, None] * len(span) + t - span.start
    held = torch.where(good, place, -1)
    return PolicyBatch(predicted.flatten(1), decided.flatten(1), held.flatten(1, 2))


def _rows(base: Tensor, length: Tensor, time: Tensor) -> Tensor:
    """[runs, users, times] rows of these predictions; -1 where a user has ended before."""
    return torch.where(time < length[..., None], base[..., None] + time, -1)


class DecisionInputs(NamedTuple):
    """Decisions in the form in which the policy saw them, flat over runs."""

    candidates: Candidates  # [runs * decisions, candidates]
    kept: Tensor  # [runs * decisions, candidates] what the policy chose
    owner: Tensor  # [runs * decisions] whose decision it was
    answers: dict[str, Tensor]  # [runs * decisions, candidates] signals


def rebuild_inputs(trace: StoredTrace, clock: Clock, decided: Tensor) -> DecisionInputs:
    """Ask again what was asked before these predictions."""
    asked = _asked(trace)
    there = decided.flatten() >= 0
    row = decided.flatten().clamp_min(0)
    before = (row - 1).clamp_min(0)
    first = trace.event[row] - trace.step[row]
    old = trace.kept[before].long()
    sketch = _entries(trace, first, old, trace.repeats[before].long(), there)
    period = clock.period[trace.step[row]][:, None]
    place = torch.arange(clock.longest, device=row.device)
    new = torch.where(place < period, trace.event[row][:, None] - period + place, -1)
    arrivals = _entries(trace, first, new, torch.ones_like(new), there)
    candidates = join(sketch, arrivals, trace.step[row], asked.key[row])
    chosen = trace.kept[row].long() - first[:, None]
    chosen = torch.where(trace.kept[row] >= 0, chosen, -2)
    kept = (candidates.position[:, :, None] == chosen[:, None, :]).any(-1)
    answers = {name: value[row].double() for name, value in asked.answers.items()}
    return DecisionInputs(candidates, kept, torch.where(there, asked.owner[row], -1), answers)


def _entries(
    trace: StoredTrace, first: Tensor, event: Tensor, repeats: Tensor, there: Tensor
) -> Sketch:
    """Events as entries of a sketch; none where there is no decision."""
    present = (event >= 0) & there[:, None]
    place = event.clamp_min(0)
    columns = trace.columns
    return Sketch(
        torch.where(present, event - first[:, None], -1),
        torch.where(present, columns.item[place], 0),
        torch.where(present, columns.rating[place], 0.0),
        torch.where(present, columns.time[place], 0),
        torch.where(present, repeats, 0),
        torch.where(present, columns.side[place], 0),
    )


def with_dropped_candidates(
    asked: DecisionInputs, count: int, width: int
) -> tuple[DecisionInputs, Tensor]:
    """Add what the `count` decisions before dropped, `width` each; and the weights (0: a ghost)."""
    dropped = asked.candidates.present & ~asked.kept
    slot = (~dropped).long().sort(dim=1, stable=True).indices[:, :width]
    gone = dropped.gather(1, slot)
    fields = {
        name: value.gather(1, slot) for name, value in asked.candidates.entries._asdict().items()
    }
    fields["position"] = torch.where(gone, fields["position"], -1)
    answers = {name: value.gather(1, slot) for name, value in asked.answers.items()}
    entries = [[field] for field in asked.candidates.entries]
    more = {name: [value] for name, value in asked.answers.items()}
    for back in range(1, count + 1):
        earlier = torch.arange(len(gone), device=gone.device) - back
        same = (earlier >= 0) & (asked.owner[earlier.clamp_min(0)] == asked.owner)
        earlier = earlier.clamp_min(0)
        for column, (name, value) in zip(entries, fields.items(), strict=True):
            blank = -1 if name == "position" else 0
            column.append(torch.where(same[:, None], value[earlier], blank))
        for name, value in answers.items():
            more[name].append(value[earlier])
    joined = [torch.cat(column, 1) for column in entries]
    candidates = Candidates._make([*joined, asked.candidates.seen, asked.candidates.key])
    weight = torch.zeros_like(candidates.position, dtype=torch.float64)
    weight[:, : asked.kept.shape[1]] = asked.candidates.present.double()
    kept = torch.zeros_like(candidates.present)
    kept[:, : asked.kept.shape[1]] = asked.kept
    answered = {name: torch.cat(column, 1) for name, column in more.items()}
    return DecisionInputs(candidates, kept, asked.owner, answered), weight


def _asked(trace: StoredTrace) -> RecordedInputs:
    if trace.asked is None:
        raise ValueError("this walk did not note what the policy was asked")
    return trace.asked
