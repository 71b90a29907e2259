"""What is learned from before a walk goes on: some users over some steps.

Whole histories are the fast form; a stretch of one step is Algorithm 1 of the paper.
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
    Clock,
    PolicyBatch,
    interval_policy_batch,
    pack_policy_batches,
)


class Block(ABC):
    """Predictions for the recommender, and lessons for the policy."""

    trace: Trace
    ends: bool
    """Whether its users have come to the end of their way."""

    @abstractmethod
    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """[runs, size] rows of the trace to learn from, batch by batch; -1 pads."""

    @abstractmethod
    def policy_batches(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Batches of decisions with the predictions that they earn credit from."""

    def own(self, batch: Tensor) -> Tensor:
        """What of a batch is learned from in this process: all of it, where there is but one."""
        return batch

    def own_policy_batch(self, policy_batch: PolicyBatch) -> PolicyBatch:
        """What of a lesson is learned from in this process."""
        return policy_batch


@final
@dataclass(frozen=True, eq=False)
class Whole(Block):
    """Whole histories of all users of a walk."""

    trace: Trace
    ends: bool = True

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """In an order that is a function of the run's seed and the epoch.

        So a resumed run goes on as if never stopped, and a stacked run sees what it would alone.
        """
        trace = self.trace
        counts = [last - first for first, last in pairwise(trace.run_rows)]
        width = math.ceil(max(counts) / size) * size
        rows = torch.full((len(counts), width), -1, dtype=torch.int64, device=trace.event.device)
        for run, (count, seed) in enumerate(zip(counts, seeds, strict=True)):
            first = trace.run_rows[run]
            order = combine(torch.arange(count, device=rows.device), seed, epoch).argsort()
            if isinstance(trace, FullHistoryTrace):
                order = _alike(order, trace.step[first : first + count], size)
            rows[run, :count] = first + order
        return torch.split(rows, size, 1)

    def policy_batches(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Users in the order of the epoch, as many as fit into a batch."""
        if not isinstance(self.trace, StoredTrace):
            return []
        return pack_policy_batches(self.trace, clock, seeds, epoch, config.policy_training.policy_batch_size)


@final
@dataclass(frozen=True, eq=False)
class Stretch(Block):
    """Some steps of users who are still on their way."""

    trace: StoredTrace
    base: Tensor  # [runs, users] the row of a user's prediction t is base + t
    length: Tensor  # [runs, users]
    span: range  # steps
    ends: bool = False

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """The predictions of these steps, by those who come that far."""
        del seeds, epoch
        return _steps(self.base, self.length, self.span, size)

    def policy_batches(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """One: these predictions give credit to the decisions of the queue."""
        del seeds, epoch
        policy_batch = interval_policy_batch(clock, config.policy_training.queue, self.base, self.length, self.span)
        return [] if policy_batch is None else [policy_batch]


@final
@dataclass(frozen=True, eq=False)
class Prefixes(Block):
    """Some steps of users who keep everything: there are no decisions."""

    trace: FullHistoryTrace
    base: Tensor  # as in a Stretch
    length: Tensor
    span: range
    ends: bool = False

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """The predictions of these steps, by those who come that far."""
        del seeds, epoch
        return _steps(self.base, self.length, self.span, size)

    def policy_batches(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """None."""
        return []


def _steps(base: Tensor, length: Tensor, span: range, size: int) -> Sequence[Tensor]:
    """[runs, size] rows of the predictions of these steps; -1 pads. Size 0: all at once.

    Who is there comes first, so that batches do not depend on who else walks in the stack.
    """
    time = torch.tensor(list(span), device=base.device)
    rows = torch.where(time < length[..., None], base[..., None] + time, -1).flatten(1)
    if not 0 < size < rows.shape[1]:
        return [rows]
    rows = rows.gather(1, (rows < 0).long().sort(dim=1, stable=True).indices)
    return torch.split(rows, size, 1)


def turns(
    batches: Sequence[Tensor], policy_batches: Sequence[PolicyBatch]
) -> Iterator[tuple[Tensor, list[PolicyBatch]]]:
    """Each batch of predictions, and the lessons that are due after it.

    Every run spreads its own lessons evenly over its own batches, whatever the other runs have: in
    a stack it learns in the same order as alone.
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
        yield batch, [_pick(everything, chosen) for chosen in which]
        before = after


def _counts(batches: Sequence[Tensor]) -> Tensor:
    """[runs] how many of these batches hold something of each run."""
    return torch.stack([(rows >= 0).any(1) for rows in batches]).sum(0).cpu()


def _pick(policy_batches: PolicyBatch, which: Tensor) -> PolicyBatch:
    """Of each run the lesson `which` [runs]; -1 is an empty one."""
    place = which.to(policy_batches.predicted.device)
    run = torch.arange(len(place), device=place.device)
    fields = []
    for field in policy_batches:
        there = (place >= 0).view(-1, *[1] * (field.dim() - 2))
        fields.append(torch.where(there, field[place.clamp_min(0), run], -1))
    return PolicyBatch(*fields)


def _alike(order: Tensor, step: Tensor, batch: int) -> Tensor:
    """The same order but with prefixes of like length in each batch, so that little is padding."""
    order = order[step[order].argsort(stable=True)]
    whole = len(order) // batch * batch
    batches = order[:whole].view(-1, batch)
    batches = batches[combine(batches[:, 0], batch).argsort()]
    return torch.cat([batches.flatten(), order[whole:]])
