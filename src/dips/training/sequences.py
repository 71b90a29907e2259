"""Train sequential recommenders on whole histories: one pass predicts after every prefix.

Used where the policy is `all`. Batches hold users with histories of similar length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from dips.numerics.descent import Rounding, identity
from dips.numerics.hashing import combine, uniform
from dips.recommender.base import Recommender
from dips.recommender.filtered_loss import losses_without
from dips.recommender.sequential import Sequential
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import FullHistoryTrace, Trace
from dips.training.batches import FullHistoryBlock, TrainingBlock
from dips.training.config import TrainConfig
from dips.training.policy_batches import PolicyBatch, RefreshTable

LENGTH_JITTER = 0.3
"""Random change of log lengths before users are sorted: batches vary between epochs."""
DROPOUT, BATCH_ORDER = 0xD20, 0x3E7
"""Separate the draws of dropout and of batches from other draws."""


@final
@dataclass(frozen=True, eq=False)
class SequenceBlock(TrainingBlock):
    """Whole histories of all users of a rollout; a batch holds whole users."""

    trace: FullHistoryTrace
    is_last: bool = True

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Return batches of about `size` predictions, in an order drawn for the epoch."""
        runs = [self._run(run, seed, epoch, size) for run, seed in enumerate(seeds)]
        nothing = torch.zeros(0, dtype=torch.int64, device=self.trace.event.device)
        count = max(len(batches) for batches in runs)
        padded = [[*batches, *[nothing] * (count - len(batches))] for batches in runs]
        return [
            torch.nn.utils.rnn.pad_sequence(list(same), batch_first=True, padding_value=-1)
            for same in zip(*padded, strict=True)
        ]

    def _run(self, run: int, seed: int, epoch: int, size: int) -> list[Tensor]:
        first, last = self.trace.run_rows[run : run + 2]
        users: tuple[Tensor, Tensor] = torch.unique_consecutive(
            self.trace.user[first:last], return_counts=True
        )
        user, count = users
        start = first + count.cumsum(0) - count
        order = (count.log() + LENGTH_JITTER * uniform(user, seed, epoch, BATCH_ORDER)).argsort()
        start, count = start[order], count[order]
        batch_ends = (count.cumsum(0) - 1) // size
        batch: Tensor = torch.unique_consecutive(batch_ends, return_inverse=True)[1]
        owner = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
        within = torch.arange(len(owner), device=count.device) - (count.cumsum(0) - count)[owner]
        sizes = torch.zeros_like(batch).scatter_add(0, batch, count)[: int(batch.max()) + 1]
        batches = torch.split(start[owner] + within, sizes.tolist())
        order = combine(torch.arange(len(batches)), seed, epoch, BATCH_ORDER).argsort()
        return [batches[place] for place in order.tolist()]

    def policy_batches(
        self, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Return none: there are no decisions."""
        return []


def full_history_block(trace: Trace, model: Recommender) -> TrainingBlock:
    """Return the block of whole histories that suits the recommender."""
    if isinstance(model, Sequential) and isinstance(trace, FullHistoryTrace):
        return SequenceBlock(trace)
    return FullHistoryBlock(trace)


def sequence_gradients(
    stack: StackedRecommenders, trace: FullHistoryTrace, rows: Tensor, drops: Sequence[Rounding]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss [runs] of a batch of predictions [runs, batch], and its gradients.

    Runs are differentiated one by one: the recurrence has no vmap rule.
    """
    found = [
        _gradients(stack, trace, own[own >= 0], run, drops[run]) for run, own in enumerate(rows)
    ]
    losses, gradients = zip(*found, strict=True)
    return torch.stack(losses), {
        name: torch.stack([each[name] for each in gradients]) for name in stack.trainable
    }


def _gradients(
    stack: StackedRecommenders, trace: FullHistoryTrace, rows: Tensor, run: int, drop: Rounding
) -> tuple[Tensor, dict[str, Tensor]]:
    state = {name: value[run].detach() for name, value in stack.state.items()}
    trained = {name: state[name].requires_grad_() for name in stack.trainable}
    if not len(rows):
        still = {name: torch.zeros_like(value) for name, value in trained.items()}
        return torch.zeros((), device=rows.device), still
    item, user, step = trace.histories(rows)
    target = trace.columns.token[trace.event[rows]][:, None]
    seen = trace.seen_items(rows, filtered=stack.template.masks_seen)

    def task(model: Recommender) -> Tensor:
        assert isinstance(model, Sequential)
        states = model.states_after(item, user, step, drop)
        return losses_without(model, states, target, torch.ones_like(target), seen).mean()

    loss: Tensor = functional_call(stack.template, {**state, **trained}, (task,))
    slopes = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
    return loss.detach(), dict(zip(trained, slopes, strict=True))


def dropouts(configs: Sequence[TrainConfig], steps: Tensor) -> list[Rounding]:
    """Return the dropout of each run in this step; a function of seed and step [runs]."""
    return [
        _dropout(config.model.dropout, config.training.training_seed, int(step), steps.device)
        if config.model.dropout
        else identity
        for config, step in zip(configs, steps, strict=True)
    ]


def _dropout(share: float, seed: int, step: int, device: torch.device) -> Rounding:
    key = int(combine(torch.tensor(seed), step, DROPOUT))
    generator = torch.Generator(device).manual_seed(key)

    def drop(value: Tensor) -> Tensor:
        uniform_draws = torch.rand(
            value.shape, generator=generator, device=device, dtype=value.dtype
        )
        return value * (uniform_draws >= share) / (1 - share)

    return drop
