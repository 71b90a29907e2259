"""Batches of decisions for policy training, and their inputs rebuilt from the trace of a rollout.

Decisions of one user are consecutive and in order of time. -1 pads everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dips.credit.decisions import DecisionInputs
from dips.numerics.hashing import combine
from dips.rollout.trace import RecordedInputs, StoredTrace
from dips.sketch.records import Sketch
from dips.sketch.update import join
from dips.stream.schedule import Schedule

ORDER = 0xBA7C4
"""Salt of the hash that orders users, so that other random numbers do not depend on it."""


class PolicyBatch(NamedTuple):
    """A batch of decisions and the predictions that give them credit."""

    predicted: Tensor  # [runs, predictions] rows of the trace
    decided: Tensor  # [runs, decisions] row of each decision's first prediction
    prediction_places: Tensor  # [runs, decisions, longest period] indices into `predicted`:
    # the predictions made from a decision's sketch, between this refresh and the next


class RefreshTable(NamedTuple):
    """The refresh schedule as tables by step (number of interactions seen)."""

    period: Tensor  # [steps] new interactions at the refresh of this step; 0 without a refresh
    following: Tensor  # [steps] predictions until the next refresh
    longest: int  # the longest period
    refreshes: list[int]  # the steps with a refresh

    @classmethod
    def of(cls, schedule: Schedule, size: int, until: int, device: torch.device) -> RefreshTable:
        """Return the tables of a schedule for all steps up to `until`.

        Args:
            schedule: When sketches are refreshed.
            size: Sketch size K.
            until: Last step of the tables.
            device: Where the tables are.
        """
        period, following = torch.zeros(2, until + 1, dtype=torch.int64)
        refreshes = list(schedule.refreshes(size, until))
        for index, (seen, length) in enumerate(refreshes):
            period[seen] = length
            following[seen] = schedule.periods[(index + 1) % len(schedule.periods)]
        steps = [seen for seen, _ in refreshes]
        return cls(period.to(device), following.to(device), schedule.longest, steps)


def pack_policy_batches(
    trace: StoredTrace, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, width: int
) -> list[PolicyBatch]:
    """Pack whole histories of all users into batches.

    Args:
        trace: Trace of a rollout that recorded the decision inputs.
        refresh_table: Refresh schedule by step.
        seeds: Seed of each run; with the epoch it fixes the order of users.
        epoch: Number of the epoch.
        width: Predictions per batch, about; a longer history has a batch of its own.

    Returns:
        Batches that together hold every prediction once.
    """
    # [batches, rows] each
    packed = [_packed(trace, run, seed, epoch, width) for run, seed in enumerate(seeds)]
    batches, rows = max(len(p) for p in packed), max(p.shape[1] for p in packed)
    device = trace.event.device
    predicted = torch.full((batches, len(seeds), rows), -1, dtype=torch.int64, device=device)
    for run, found in enumerate(packed):
        predicted[: len(found), run, : found.shape[1]] = found
    place = predicted.clamp_min(0)
    refreshed = (predicted >= 0) & (refresh_table.period[trace.step[place]] > 0)
    most = max(1, int(refreshed.sum(-1).max()))
    slot = (~refreshed).long().sort(dim=-1, stable=True).indices[..., :most]
    decided = torch.where(refreshed.gather(-1, slot), predicted.gather(-1, slot), -1)
    places = _prediction_places(trace, refresh_table, predicted, decided, slot)
    return [PolicyBatch(*fields) for fields in zip(predicted, decided, places, strict=True)]


def _prediction_places(
    trace: StoredTrace,
    refresh_table: RefreshTable,
    predicted: Tensor,
    decided: Tensor,
    slot: Tensor,
) -> Tensor:
    """Return the places of the predictions made from each decision's sketch."""
    recorded = _recorded(trace)
    offset = torch.arange(refresh_table.longest, device=slot.device)
    width = predicted.shape[-1]
    after = slot[..., None] + offset
    inside = after.clamp_max(width - 1)
    row = predicted.gather(-1, inside.flatten(-2)).reshape(after.shape)
    first = decided.clamp_min(0)
    same = recorded.owner[row.clamp_min(0)] == recorded.owner[first][..., None]
    until = refresh_table.following[trace.step[first]][..., None]
    good = (offset < until) & (after < width) & (row >= 0) & same & (decided >= 0)[..., None]
    return torch.where(good, inside, -1)


def _packed(trace: StoredTrace, run: int, seed: int, epoch: int, width: int) -> Tensor:
    """Return rows [batches, rows] of one run: users in the order of the epoch."""
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
    refresh_table: RefreshTable, queue: int, base: Tensor, length: Tensor, span: range
) -> PolicyBatch | None:
    """Return the predictions of an update interval with the decisions that get credit from them.

    Args:
        refresh_table: Refresh schedule by step.
        queue: Decisions over which a choice gets credit (Q).
        base: Row of each user's prediction 0, [runs, users]; prediction t has row base + t.
        length: Length of each user's history, [runs, users].
        span: Steps of the interval.

    Returns:
        A batch; None before the first refresh.
    """
    device = base.device
    refreshes = refresh_table.refreshes
    active = [index for index, seen in enumerate(refreshes) if seen <= span.start]
    oldest = max(0, (active[-1] if active else 0) - (queue - 1))
    steps = [seen for seen in refreshes[oldest:] if seen < span.stop]
    if not steps:
        return None
    time = torch.tensor(list(span), device=device)
    predicted = _rows(base, length, time)
    seen = torch.tensor(steps, device=device)
    decided = _rows(base, length, seen)
    offset = torch.arange(refresh_table.longest, device=device)
    t = seen[:, None] + offset  # [decisions, longest period]
    good = (offset < refresh_table.following[seen][:, None]) & (t >= span.start) & (t < span.stop)
    good = good & (t < length[:, :, None, None])
    place = torch.arange(base.shape[1], device=device)[:, None, None] * len(span) + t - span.start
    prediction_places = torch.where(good, place, -1)
    return PolicyBatch(predicted.flatten(1), decided.flatten(1), prediction_places.flatten(1, 2))


def _rows(base: Tensor, length: Tensor, time: Tensor) -> Tensor:
    """Return rows [runs, users, times] of predictions; -1 beyond the end of a history."""
    return torch.where(time < length[..., None], base[..., None] + time, -1)


def rebuild_inputs(
    trace: StoredTrace, refresh_table: RefreshTable, decided: Tensor
) -> DecisionInputs:
    """Return the inputs of decisions as the policy saw them during the rollout.

    Args:
        trace: Trace of a rollout that recorded the decision inputs.
        refresh_table: Refresh schedule by step.
        decided: Row of each decision's first prediction, [runs, decisions]; -1 pads.

    Returns:
        Candidates, choices, users and recorded signals, flat over runs.
    """
    recorded = _recorded(trace)
    there = decided.flatten() >= 0
    row = decided.flatten().clamp_min(0)
    before = (row - 1).clamp_min(0)
    first = trace.event[row] - trace.step[row]
    old = trace.kept[before].long()
    sketch = _entries(trace, first, old, trace.repeats[before].long(), there)
    period = refresh_table.period[trace.step[row]][:, None]
    place = torch.arange(refresh_table.longest, device=row.device)
    new = torch.where(place < period, trace.event[row][:, None] - period + place, -1)
    arrivals = _entries(trace, first, new, torch.ones_like(new), there)
    candidates = join(sketch, arrivals, trace.step[row], recorded.key[row])
    best_models = trace.kept[row].long() - first[:, None]
    best_models = torch.where(trace.kept[row] >= 0, best_models, -2)
    kept = (candidates.position[:, :, None] == best_models[:, None, :]).any(-1)
    signals = {name: value[row].double() for name, value in recorded.signals.items()}
    return DecisionInputs(candidates, kept, torch.where(there, recorded.owner[row], -1), signals)


def _entries(
    trace: StoredTrace, first: Tensor, event: Tensor, repeats: Tensor, there: Tensor
) -> Sketch:
    """Return events as entries of a sketch; empty where there is no decision."""
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


def _recorded(trace: StoredTrace) -> RecordedInputs:
    """Return the recorded decision inputs of a trace."""
    if trace.inputs is None:
        raise ValueError("the rollout did not record decision inputs: pass the signals to record")
    return trace.inputs
