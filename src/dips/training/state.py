"""A stack of runs in training: parameters, optimizers, and how far it has come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dips.numerics.process_group import ProcessGroup
from dips.numerics.stacking import strip_prefix
from dips.policy.base import Policy
from dips.policy.registry import learns
from dips.policy.stacked import StackedPolicies
from dips.recommender.base import Recommender
from dips.recommender.memory_based import popularity
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.training.lazy_adam import LazyAdam
from dips.training.optimizers import StackedAdam, StackedSGD
from dips.training.rollouts import Job, Players, policy_of

Optimizer = StackedAdam | StackedSGD | LazyAdam
SCARCE = 4
"""A batch touches few rows if there are so many times more items than it can name."""


@dataclass
class Progress:
    """Where a stack of runs stands: everything that a checkpoint has to hold besides tensors."""

    epoch: int = 0
    best: list[float] = field(default_factory=list)
    best_epoch: list[int] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    ease: list[float] = field(default_factory=list)
    """The share of its rate that each policy moves by, since steps of it were undone."""
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    user_batches: int = 0
    """Companies of users that have walked in the epoch under way; 0 between epochs."""
    taken: list[int] = field(default_factory=list)
    """Predictions that each run has learned from in that epoch."""
    total: list[float] = field(default_factory=list)
    """The sum of their losses."""


@dataclass(eq=False)
class TrainingState:
    """A stack of runs in training."""

    stack: StackedRecommenders
    policies: StackedPolicies | None
    """Policies that learn, or None."""
    best: StateDict
    walked: StateDict
    """Recommenders and policies as training last walked with them."""
    optimizers: dict[str, Optimizer]
    """By what they move: items, user (where it has its own), policy (where it learns)."""
    progress: Progress

    def parameters(self) -> StateDict:
        """Everything that a run is made of, recommenders and policies, as it is now."""
        named = {f"recommender.{name}": value for name, value in self.stack.state.items()}
        if self.policies is not None:
            named |= {f"policy.{name}": value for name, value in self.policies.state.items()}
        return named

    def players(self, state: StateDict) -> Players:
        """Recommenders and policies with these parameters."""
        stack = StackedRecommenders(self.stack.template, strip_prefix("recommender.", state))
        if self.policies is None:
            return stack, None
        return stack, StackedPolicies(self.policies.template, strip_prefix("policy.", state))

    def chosen(self) -> Players:
        """The best epoch of each run."""
        return self.players(self.best)

    def undo(self, run: int, before: StateDict) -> None:
        """Take a run's policy back to what it was, and let it go on half as fast."""
        for name, value in before.items():
            self.parameters()[name][run] = value[run]
        policy = self.optimizers["policy"]
        assert isinstance(policy, StackedAdam)
        policy.forget(run)
        self.progress.ease[run] /= 2

    @property
    def steps(self) -> Tensor:
        """[runs] how often the items have moved."""
        items = self.optimizers["items"]
        assert not isinstance(items, StackedSGD)
        return items.steps

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a checkpoint."""
        named = {f"now.{name}": value for name, value in self.parameters().items()}
        named |= {f"best.{name}": value for name, value in self.best.items()}
        named |= {f"walked.{name}": value for name, value in self.walked.items()}
        for group, optimizer in self.optimizers.items():
            named |= {f"{group}.{name}": value for name, value in optimizer.state().items()}
        return named

    def load(self, tensors: dict[str, Tensor], progress: Progress) -> None:
        """Take up where a checkpoint stopped; an epoch under way is counted when it goes on."""
        for prefix, state in (
            ("now.", self.parameters()), ("best.", self.best), ("walked.", self.walked)
        ):  # fmt: skip
            for name, value in state.items():
                value.copy_(tensors[prefix + name])
        for group, optimizer in self.optimizers.items():
            optimizer.load(strip_prefix(f"{group}.", tensors))
        self.progress = progress
        if progress.user_batches:
            progress.epoch -= 1

    def align(self, process_group: ProcessGroup) -> None:
        """Be as far as the leader, with its parameters: a checkpoint is read by it alone."""
        process_group.broadcast_tensors(self.tensors().values())
        self.progress = process_group.broadcast_object(self.progress)


def start(
    jobs: Sequence[Job],
    recommenders: Sequence[Recommender],
    device: str,
    policies: Sequence[Policy] = (),
) -> TrainingState:
    """Set up a stack of runs that has seen nothing yet."""
    stack = StackedRecommenders.of(recommenders, device)
    modules = [policy for policy in policies if isinstance(policy, nn.Module) and learns(policy)]
    networks = StackedPolicies.of(modules, device) if modules else None
    decay = torch.tensor([job.config.training.weight_decay for job in jobs], device=device)
    if bool((decay < 0).any()):
        raise ValueError("settings must be fitted to the data first: see TrainConfig.fitted")
    trained = {name: stack.state[name] for name in stack.trainable}
    optimizers: dict[str, Optimizer] = {}
    if jobs[0].config.training.user_lr:
        optimizers["user"] = StackedSGD({"user_prior": trained.pop("user_prior")}, decay)
    undecayed, tables = stack.template.no_weight_decay, _scarce(jobs, stack.template)
    for name in set(tables) & set(trained) - set(undecayed):
        # No step will read them: the penalty alone would take them to 0, where they start instead.
        unread = torch.stack([popularity(job.train) == 0 for job in jobs]).to(device)
        unread &= decay[:, None] > 0
        trained[name][unread] = 0.0
    optimizers["items"] = (
        LazyAdam(trained, decay, undecayed, tables)
        if tables
        else StackedAdam(trained, decay, undecayed)
    )
    if networks is not None:
        weight = torch.tensor([job.config.policy_training.policy_weight_decay for job in jobs], device=device)
        moved = {name: networks.state[name] for name in networks.trainable}
        optimizers["policy"] = StackedAdam(moved, weight)
    count = len(jobs)
    progress = Progress(
        best=[math.inf] * count,
        best_epoch=[0] * count,
        diverged=[""] * count,
        ease=[1.0] * count,
    )
    fitting = TrainingState(stack, networks, {}, {}, optimizers, progress)
    fitting.best = {name: value.clone() for name, value in fitting.parameters().items()}
    fitting.walked = {name: value.clone() for name, value in fitting.parameters().items()}
    return fitting


def _scarce(jobs: Sequence[Job], model: Recommender) -> tuple[str, ...]:
    """Tables of which a batch touches few rows only, none unless that is sure beforehand."""
    configs = [job.config for job in jobs]
    if model.loss.listwise or any(policy_of(config).keeps_all for config in configs):
        return ()
    most = max(config.sketch.size for config in configs) + 1
    widest = most * max(config.training.batch_size for config in configs)
    return model.item_tables if 0 < SCARCE * widest < model.items else ()
