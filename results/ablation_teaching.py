"""Who learns from whom and when, other than together from all: for ablations.py alone.

The product has recommender and policy learn from the same users in the same epoch. Here they take
turns, or learn from different users. What this gave is in docs/ablations.md.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple, final
from unittest.mock import patch

import torch
from torch import Tensor

from dips.numerics.hashing import combine
from dips.policy.stacked import StackedPolicies
from dips.recommender.base import Recommender
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import Trace
from dips.stream.users import Columns
from dips.studies import run as experiment
from dips.training.batches import Block
from dips.training.config import TrainConfig
from dips.training.policy_batches import Clock, PolicyBatch
from dips.training.rollouts import Job, Players, TrainingRollouts
from dips.training.trainer import TrainingState, fit

HELD, PARTS = 0x4E1D, 4
"""Who is held back is drawn apart from all else: one user of so many."""


class Teaching(NamedTuple):
    """How a block is learned from."""

    wrap: Callable[[Block], Block]
    longer: int = 1
    """Times as many epochs: as much for each, where they take turns."""


class Around(Block, ABC):
    """Another block's users and steps."""

    def __init__(self, inner: Block) -> None:
        self.inner, self.trace, self.ends = inner, inner.trace, inner.ends


@final
class InTurn(Around):
    """The recommender learns in odd epochs, the policy in even ones."""

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """In even epochs a single one with nothing in it."""
        found = self.inner.batches(seeds, epoch, size)
        return found if epoch % 2 else [torch.full_like(found[0], -1)]

    def policy_batches(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """In odd epochs none."""
        return [] if epoch % 2 else self.inner.policy_batches(clock, seeds, epoch, config)


@final
class HeldBack(Around):
    """The recommender does not learn from some users, the policy from them alone (`apart`).

    Without `apart` nobody learns from them: so much is lost by holding back as such. They are the
    same for ever, or others in each epoch (`anew`). If they are `read` the recommender learns from
    them as well: so much comes from a policy that learns less.
    """

    def __init__(
        self, inner: Block, *, apart: bool, anew: bool = False, read: bool = False
    ) -> None:
        super().__init__(inner)
        self.apart, self.anew, self.read = apart, anew, read

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Without the users who are held back."""
        found = self.inner.batches(seeds, epoch, size)
        if self.read:
            return found
        held = self._held(seeds, epoch)
        return [torch.where(held[rows.clamp_min(0)], -1, rows) for rows in found]

    def policy_batches(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Of those who teach the policy, as many in each lesson as else of all."""
        teach = self._held(seeds, epoch) == self.apart
        share = 1 / PARTS if self.apart else 1 - 1 / PARTS
        wide = config.but(policy_batch_size=round(config.policy_batch_size / share))
        found = self.inner.policy_batches(clock, seeds, epoch, wide)
        return [_only(teach, policy_batch) for policy_batch in found]

    def _held(self, seeds: Sequence[int], epoch: int) -> Tensor:
        """[rows] whether a prediction is of a user who is held back: drawn for each run."""
        user, draw = self.trace.user, (HELD, epoch) if self.anew else (HELD,)
        parts = [
            combine(user[first:last], seed, *draw) % PARTS == 0
            for (first, last), seed in zip(pairwise(self.trace.run_rows), seeds, strict=True)
        ]
        return torch.cat(parts)


def _only(teach: Tensor, policy_batch: PolicyBatch) -> PolicyBatch:
    there = teach[policy_batch.decided.clamp_min(0)] & (policy_batch.decided >= 0)
    return PolicyBatch(
        policy_batch.predicted,
        torch.where(there, policy_batch.decided, -1),
        torch.where(there[..., None], policy_batch.held, -1),
    )


class _Taught:
    """The sketches of these walks, their blocks wrapped."""

    def __init__(self, walks: TrainingRollouts, wrap: Callable[[Block], Block]) -> None:
        self.walks, self.wrap = walks, wrap
        self.clock, self.live = walks.clock, walks.live

    def sketches(self, epoch: int, now: Players, walked: Players) -> tuple[Trace | None, Trace]:
        return self.walks.sketches(epoch, now, walked)

    def block(self, training: Trace, model: Recommender) -> Block:
        return self.wrap(self.walks.block(training, model))

    def blocks(
        self,
        epoch: int,
        stack: StackedRecommenders,
        policies: StackedPolicies | None,
        skip: int = 0,
    ) -> Iterator[Block]:
        return map(self.wrap, self.walks.blocks(epoch, stack, policies, skip))


def taught(teaching: Teaching | None) -> AbstractContextManager[Any]:
    """Experiments teach so meanwhile; None: as ever."""
    if teaching is None:
        return nullcontext()
    wrap = teaching.wrap

    def otherwise(
        fitting: TrainingState, jobs: Sequence[Job], columns: Columns, *rest: Any
    ) -> None:
        validate, watch, save, process_group = rest
        walks = _Taught(TrainingRollouts(jobs, columns, process_group), wrap)
        fit(fitting, jobs, columns, validate, watch, save, process_group, sketching=walks)

    return patch.object(experiment, "fit", otherwise)
