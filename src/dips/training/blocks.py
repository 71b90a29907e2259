"""What is learned from before a walk goes on: some users over some steps.

Whole histories are the fast form; a stretch of one step is Algorithm 1 of the paper.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from dips.numerics.hashing import combine
from dips.trace import StoredTrace, Trace, WholeTrace
from dips.training.config import TrainConfig
from dips.training.decisions import Clock, Lesson, stretch_lesson, whole_lessons


class Block(ABC):
    """Predictions for the recommender, and lessons for the policy."""

    trace: Trace

    @abstractmethod
    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """[runs, size] rows of the trace to learn from, batch by batch; -1 pads."""

    @abstractmethod
    def lessons(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[Lesson]:
        """Batches of decisions with the predictions that they earn credit from."""


@final
@dataclass(frozen=True, eq=False)
class Whole(Block):
    """Whole histories of all users of a walk."""

    trace: Trace

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
            if isinstance(trace, WholeTrace):
                order = _alike(order, trace.step[first : first + count], size)
            rows[run, :count] = first + order
        return torch.split(rows, size, 1)

    def lessons(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[Lesson]:
        """Users in the order of the epoch, as many as fit into a batch."""
        if not isinstance(self.trace, StoredTrace):
            return []
        return whole_lessons(self.trace, clock, seeds, epoch, config.policy_batch)


@final
@dataclass(frozen=True, eq=False)
class Stretch(Block):
    """Some steps of users who are still on their way."""

    trace: StoredTrace
    base: Tensor  # [runs, users] the row of a user's prediction t is base + t
    length: Tensor  # [runs, users]
    span: range  # steps

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """The predictions of these steps, by those who come that far."""
        del seeds, epoch
        time = torch.tensor(list(self.span), device=self.base.device)
        rows = torch.where(time < self.length[..., None], self.base[..., None] + time, -1)
        return torch.split(rows.flatten(1), size, 1)

    def lessons(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[Lesson]:
        """One: these predictions give credit to the decisions of the queue."""
        del seeds, epoch
        lesson = stretch_lesson(clock, config.queue, self.base, self.length, self.span)
        return [] if lesson is None else [lesson]


def _alike(order: Tensor, step: Tensor, batch: int) -> Tensor:
    """The same order but with prefixes of like length in each batch, so that little is padding."""
    order = order[step[order].argsort(stable=True)]
    whole = len(order) // batch * batch
    batches = order[:whole].view(-1, batch)
    batches = batches[combine(batches[:, 0], batch).argsort()]
    return torch.cat([batches.flatten(), order[whole:]])
