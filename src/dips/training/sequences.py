"""Learn from whole histories in one pass each: the state after every prefix predicts what follows.

For recommenders that read in order, where everything is kept. Users of like length go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from dips.numerics.descent import Rounding, keep
from dips.numerics.hashing import combine, uniform
from dips.recommender.base import Recommender
from dips.recommender.sequential import Sequential
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import FullHistoryTrace, Trace
from dips.training.batches import Block, Whole
from dips.training.config import TrainConfig
from dips.training.policy_batches import Clock, PolicyBatch

JITTER = 0.3
"""How far, on the log scale, lengths may differ by chance: else the same users always meet."""
DROPPED, MET = 0xD20, 0x3E7
"""Keep the draws of units and of company apart from other draws."""


@final
@dataclass(frozen=True, eq=False)
class Sequences(Block):
    """Whole histories of all users of a walk, user by user."""

    trace: FullHistoryTrace
    ends: bool = True

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """All predictions of some users, about `size` of them, in an order drawn for the epoch."""
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
        order = (count.log() + JITTER * uniform(user, seed, epoch, MET)).argsort()
        start, count = start[order], count[order]
        ends = (count.cumsum(0) - 1) // size
        batch: Tensor = torch.unique_consecutive(ends, return_inverse=True)[1]
        owner = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
        within = torch.arange(len(owner), device=count.device) - (count.cumsum(0) - count)[owner]
        sizes = torch.zeros_like(batch).scatter_add(0, batch, count)[: int(batch.max()) + 1]
        batches = torch.split(start[owner] + within, sizes.tolist())
        lots = combine(torch.arange(len(batches)), seed, epoch, MET).argsort()
        return [batches[place] for place in lots.tolist()]

    def policy_batches(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """None: there are no decisions."""
        return []


def whole(trace: Trace, model: Recommender) -> Block:
    """Whole histories, as this recommender learns from them best."""
    if isinstance(model, Sequential) and isinstance(trace, FullHistoryTrace):
        return Sequences(trace)
    return Whole(trace)


def sequence_gradients(
    stack: StackedRecommenders, trace: FullHistoryTrace, rows: Tensor, drops: Sequence[Rounding]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss [runs] of a batch of predictions [runs, batch], and its gradients.

    Run by run, by plain automatic differentiation: the recurrence has no rule for stacks.
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

    def task(model: Recommender) -> Tensor:
        assert isinstance(model, Sequential)
        states = model.states_after(item, user, step, drop)
        return model.losses(states, target, torch.ones_like(target)).mean()

    loss: Tensor = functional_call(stack.template, {**state, **trained}, (task,))
    slopes = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
    return loss.detach(), dict(zip(trained, slopes, strict=True))


def dropouts(configs: Sequence[TrainConfig], steps: Tensor) -> list[Rounding]:
    """What leaves out units in this step of each run; a function of seed and step [runs]."""
    return [
        _dropout(config.model.dropout, config.training.seed, int(step), steps.device) if config.model.dropout else keep
        for config, step in zip(configs, steps, strict=True)
    ]


def _dropout(share: float, seed: int, step: int, device: torch.device) -> Rounding:
    key = int(combine(torch.tensor(seed), step, DROPPED))
    generator = torch.Generator(device).manual_seed(key)

    def drop(value: Tensor) -> Tensor:
        lots = torch.rand(value.shape, generator=generator, device=device, dtype=value.dtype)
        return value * (lots >= share) / (1 - share)

    return drop
