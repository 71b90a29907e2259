"""Blocks of a rollout that are trained on: batches of predictions, and policy batches.

With `update_interval` None a block holds whole histories, which is the fast form. An interval of 1
is the paper's Algorithm 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from dips.numerics.hashing import combine
from dips.rollout.trace import FullHistoryTrace, StoredTrace, Trace
from dips.training.config import TrainConfig
from dips.training.policy_batches import (
    PolicyBatch,
    RefreshTable,
    interval_policy_batch,
    pack_policy_batches,
)


class TrainingBlock(ABC):
    """Some users over some steps: predictions for the recommender, decisions for the policy."""

    trace: Trace
    is_last: bool
    """Whether it is the last block of its users."""

    @abstractmethod
    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Return rows of the trace in batches of [runs, size]; -1 pads."""

    @abstractmethod
    def policy_batches(
        self, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Return batches of decisions with the predictions that give them credit."""

    def local_rows(self, batch: Tensor) -> Tensor:
        """Return the rows of a batch that this process trains on; all, if it is the only one."""
        return batch

    def local_policy_batch(self, policy_batch: PolicyBatch) -> PolicyBatch:
        """Return the part of a policy batch that this process trains on."""
        return policy_batch


@final
@dataclass(frozen=True, eq=False)
class FullHistoryBlock(TrainingBlock):
    """Whole histories of all users of a rollout."""

    trace: Trace
    is_last: bool = True

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Return all predictions, in an order that is a function of the run's seed and the epoch.

        So a resumed run equals an uninterrupted one, and a stacked run equals the run alone.
        """
        trace = self.trace
        counts = [last - first for first, last in pairwise(trace.run_rows)]
        width = math.ceil(max(counts) / size) * size
        rows = torch.full((len(counts), width), -1, dtype=torch.int64, device=trace.event.device)
        for run, (count, seed) in enumerate(zip(counts, seeds, strict=True)):
            first = trace.run_rows[run]
            order = combine(torch.arange(count, device=rows.device), seed, epoch).argsort()
            if isinstance(trace, FullHistoryTrace):
                order = _by_length(order, trace.step[first : first + count], size)
            rows[run, :count] = first + order
        return torch.split(rows, size, 1)

    def policy_batches(
        self, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Return batches of whole users, in the order drawn for the epoch."""
        if not isinstance(self.trace, StoredTrace):
            return []
        size = config.policy_training.policy_batch_size
        return pack_policy_batches(self.trace, refresh_table, seeds, epoch, size)


@final
@dataclass(frozen=True, eq=False)
class IntervalBlock(TrainingBlock):
    """Some steps of users whose rollout goes on."""

    trace: StoredTrace
    base: Tensor  # [runs, users] the row of a user's prediction t is base + t
    length: Tensor  # [runs, users]
    span: range  # steps
    is_last: bool = False

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Return the predictions of these steps, by users whose history is that long."""
        del seeds, epoch
        return _steps(self.base, self.length, self.span, size)

    def policy_batches(
        self, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Return one batch: these predictions give credit to the decisions of the queue."""
        del seeds, epoch
        queue = config.policy_training.queue
        policy_batch = interval_policy_batch(
            refresh_table, queue, self.base, self.length, self.span
        )
        return [] if policy_batch is None else [policy_batch]


@final
@dataclass(frozen=True, eq=False)
class FullHistoryIntervalBlock(TrainingBlock):
    """Some steps of users whose sketch is the whole history: there are no decisions."""

    trace: FullHistoryTrace
    base: Tensor  # row of a user's prediction t is base + t
    length: Tensor
    span: range
    is_last: bool = False

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Return the predictions of these steps, by users whose history is that long."""
        del seeds, epoch
        return _steps(self.base, self.length, self.span, size)

    def policy_batches(
        self, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Return none: there are no decisions."""
        return []


def _steps(base: Tensor, length: Tensor, span: range, size: int) -> Sequence[Tensor]:
    """Return rows of the predictions of these steps, [runs, size]; -1 pads. Size 0: one batch.

    Present rows come first, so that batches do not depend on the other runs of the stack.
    """
    time = torch.tensor(list(span), device=base.device)
    rows = torch.where(time < length[..., None], base[..., None] + time, -1).flatten(1)
    if not 0 < size < rows.shape[1]:
        return [rows]
    rows = rows.gather(1, (rows < 0).long().sort(dim=1, stable=True).indices)
    return torch.split(rows, size, 1)


def interleave(
    batches: Sequence[Tensor], policy_batches: Sequence[PolicyBatch]
) -> Iterator[tuple[Tensor, list[PolicyBatch]]]:
    """Yield each batch of predictions with the policy batches that are due after it.

    Every run spreads its own policy batches evenly over its own batches. So a stacked run is
    updated in the same order as the run alone.
    """
    if len(policy_batches) < 2:  # after everything; and nothing has to be counted
        yield from ((batch, []) for batch in batches[:-1])
        yield batches[-1], list(policy_batches)
        return
    counts = _counts(batches), _counts([policy_batch.predicted for policy_batch in policy_batches])
    before = torch.zeros_like(counts[0])
    everything = PolicyBatch(*map(torch.stack, zip(*policy_batches, strict=True)))
    for index, batch in enumerate(batches):
        after = counts[1] * (index + 1) // counts[0].clamp_min(index + 1)
        due = range(int((after - before).max()))
        which = [torch.where(before + k < after, before + k, -1) for k in due]
        yield batch, [_pick(everything, best_models) for best_models in which]
        before = after


def _counts(batches: Sequence[Tensor]) -> Tensor:
    """Return how many of these batches have rows of each run, [runs]."""
    return torch.stack([(rows >= 0).any(1) for rows in batches]).sum(0).cpu()


def _pick(policy_batches: PolicyBatch, which: Tensor) -> PolicyBatch:
    """Return policy batch `which` [runs] of each run; -1 is an empty one."""
    place = which.to(policy_batches.predicted.device)
    run = torch.arange(len(place), device=place.device)
    fields = []
    for field in policy_batches:
        there = (place >= 0).view(-1, *[1] * (field.dim() - 2))
        fields.append(torch.where(there, field[place.clamp_min(0), run], -1))
    return PolicyBatch(*fields)


def _by_length(order: Tensor, step: Tensor, batch: int) -> Tensor:
    """Return an order in which each batch has prefixes of similar length: less padding."""
    order = order[step[order].argsort(stable=True)]
    whole = len(order) // batch * batch
    batches = order[:whole].view(-1, batch)
    batches = batches[combine(batches[:, 0], batch).argsort()]
    return torch.cat([batches.flatten(), order[whole:]])
