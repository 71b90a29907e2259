"""Other ways to train recommender and policy, for ablations.py only.

`dips` trains recommender and policy on the same users in the same epoch. Here their updates
alternate, or they are trained on different users. Results are in docs/ablations.md.
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
from dips.stream.users import EventColumns
from dips.studies import run as run_module
from dips.training.batches import TrainingBlock
from dips.training.config import TrainConfig
from dips.training.policy_batches import PolicyBatch, RefreshTable
from dips.training.rollouts import Job, StackedModels, TrainingRollouts
from dips.training.trainer import TrainingState, fit

HELD, PARTS = 0x4E1D, 4
"""Salt of the hash that selects held-out users, and one user in how many is held out."""


class TrainingVariant(NamedTuple):
    """A change of the training blocks."""

    wrap: Callable[[TrainingBlock], TrainingBlock]
    epoch_factor: int = 1
    """Factor of the number of epochs."""


class BlockWrapper(TrainingBlock, ABC):
    """A block with the users and steps of another block."""

    def __init__(self, inner: TrainingBlock) -> None:
        self.inner, self.trace, self.is_last = inner, inner.trace, inner.is_last


@final
class AlternatingUpdates(BlockWrapper):
    """Trains the recommender in odd epochs and the policy in even ones."""

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Return an empty batch in even epochs."""
        found = self.inner.batches(seeds, epoch, size)
        return found if epoch % 2 else [torch.full_like(found[0], -1)]

    def policy_batches(
        self, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Return no policy batch in odd epochs."""
        if epoch % 2:
            return []
        return self.inner.policy_batches(refresh_table, seeds, epoch, config)


@final
class HeldOutUsers(BlockWrapper):
    """Holds out users from the training of the recommender.

    Args:
        inner: The block of all users.
        train_policy: Whether the policy is trained on the held-out users only; otherwise they are
            not used at all, which shows the cost of holding out.
        each_epoch: Whether other users are held out in each epoch.
        train_recommender: Whether the recommender is trained on all users, which shows the effect
            of fewer users for the policy.
    """

    def __init__(
        self,
        inner: TrainingBlock,
        *,
        train_policy: bool,
        each_epoch: bool = False,
        train_recommender: bool = False,
    ) -> None:
        super().__init__(inner)
        self.train_policy, self.each_epoch = train_policy, each_epoch
        self.train_recommender = train_recommender

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Return batches without the held-out users."""
        found = self.inner.batches(seeds, epoch, size)
        if self.train_recommender:
            return found
        held = self._held(seeds, epoch)
        return [torch.where(held[rows.clamp_min(0)], -1, rows) for rows in found]

    def policy_batches(
        self, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Return policy batches of the usual size, of the users that train the policy."""
        used = self._held(seeds, epoch) == self.train_policy
        share = 1 / PARTS if self.train_policy else 1 - 1 / PARTS
        wide = config.but(policy_batch_size=round(config.policy_training.policy_batch_size / share))
        found = self.inner.policy_batches(refresh_table, seeds, epoch, wide)
        return [_only(used, policy_batch) for policy_batch in found]

    def _held(self, seeds: Sequence[int], epoch: int) -> Tensor:
        """Return whether each prediction is of a held-out user, [rows]; runs differ."""
        user, draw = self.trace.user, (HELD, epoch) if self.each_epoch else (HELD,)
        parts = [
            combine(user[first:last], seed, *draw) % PARTS == 0
            for (first, last), seed in zip(pairwise(self.trace.run_rows), seeds, strict=True)
        ]
        return torch.cat(parts)


def _only(used: Tensor, policy_batch: PolicyBatch) -> PolicyBatch:
    there = used[policy_batch.decided.clamp_min(0)] & (policy_batch.decided >= 0)
    return PolicyBatch(
        policy_batch.predicted,
        torch.where(there, policy_batch.decided, -1),
        torch.where(there[..., None], policy_batch.prediction_places, -1),
    )


class _WrappedRollouts:
    """Rollouts whose blocks are wrapped."""

    def __init__(
        self, rollouts: TrainingRollouts, wrap: Callable[[TrainingBlock], TrainingBlock]
    ) -> None:
        self.rollouts, self.wrap = rollouts, wrap
        self.refresh_table, self.interleaved = rollouts.refresh_table, rollouts.interleaved

    def traces(
        self, epoch: int, current: StackedModels, at_rollout: StackedModels
    ) -> tuple[Trace | None, Trace]:
        return self.rollouts.traces(epoch, current, at_rollout)

    def block(self, training: Trace, model: Recommender) -> TrainingBlock:
        return self.wrap(self.rollouts.block(training, model))

    def blocks(
        self,
        epoch: int,
        stack: StackedRecommenders,
        policies: StackedPolicies | None,
        skip: int = 0,
    ) -> Iterator[TrainingBlock]:
        return map(self.wrap, self.rollouts.blocks(epoch, stack, policies, skip))


def train_as(variant: TrainingVariant | None) -> AbstractContextManager[Any]:
    """Patch training with a variant; None changes nothing."""
    if variant is None:
        return nullcontext()
    wrap = variant.wrap

    def changed_fit(
        state: TrainingState, jobs: Sequence[Job], columns: EventColumns, *rest: Any, **more: Any
    ) -> None:
        process_group = rest[-1]
        rollouts = _WrappedRollouts(TrainingRollouts(jobs, columns, process_group), wrap)
        fit(state, jobs, columns, *rest, traces=rollouts, **more)

    return patch.object(run_module, "fit", changed_fit)
