"""The state of stacked runs in training: parameters, optimizers and progress."""

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
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import SampledLoss
from dips.recommender.memory_based import popularity
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.training.lazy_adam import LazyAdam
from dips.training.optimizers import StackedAdam, StackedSGD
from dips.training.rollouts import Job, StackedModels, policy_of

Optimizer = StackedAdam | StackedSGD | LazyAdam
SPARSE_FACTOR = 4
"""Updates are sparse if there are this many times more items than a batch can contain."""


@dataclass
class Progress:
    """Progress of stacked runs: everything that a checkpoint holds besides tensors."""

    epoch: int = 0
    best: list[float] = field(default_factory=list)
    best_epoch: list[int] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    policy_lr_scale: list[float] = field(default_factory=list)
    """Factor on each run's policy learning rate; halved when an epoch is reverted."""
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    user_batches_done: int = 0
    """User batches that are done in the current epoch; 0 between epochs."""
    predictions: list[int] = field(default_factory=list)
    """Predictions that each run was updated by in the current epoch."""
    loss_sums: list[float] = field(default_factory=list)
    """Sum of their losses."""
    batches_done: int = 0
    """Batches that are done in the current user batch; 0 between user batches."""
    share: float = 0.0
    """Share of the current epoch that is done."""

    def end_epoch(self) -> None:
        """Forget how far the epoch has come: it is done."""
        self.user_batches_done = self.batches_done = 0
        self.predictions, self.loss_sums, self.share = [], [], 0.0


@dataclass(eq=False)
class TrainingState:
    """Parameters and optimizers of stacked runs."""

    stack: StackedRecommenders
    policies: StackedPolicies | None
    """Policies with parameters, or None."""
    best: StateDict
    rollout_parameters: StateDict
    """Parameters with which training users were last rolled out."""
    policy_before: StateDict
    """Parameters of the policies at the start of the epoch; it may be reverted to them."""
    optimizers: dict[str, Optimizer]
    """By parameter group: items, user (if it has its own), policy (if it is trained)."""
    progress: Progress

    def parameters(self) -> StateDict:
        """Return the current parameters of recommenders and policies, by name."""
        named = {f"recommender.{name}": value for name, value in self.stack.state.items()}
        return named | self.policy_parameters()

    def policy_parameters(self) -> StateDict:
        """Return the current parameters of policies, by name; none, if they have none."""
        state = {} if self.policies is None else self.policies.state
        return {f"policy.{name}": value for name, value in state.items()}

    def models_with(self, state: StateDict) -> StackedModels:
        """Return recommenders and policies with these parameters."""
        stack = StackedRecommenders(self.stack.template, strip_prefix("recommender.", state))
        if self.policies is None:
            return stack, None
        return stack, StackedPolicies(self.policies.template, strip_prefix("policy.", state))

    def best_models(self) -> StackedModels:
        """Return recommenders and policies of the best epoch of each run."""
        return self.models_with(self.best)

    def revert_policy(self, run: int) -> None:
        """Restore a run's policy, reset its momentum and halve its learning rate."""
        for name, value in self.policy_parameters().items():
            value[run] = self.policy_before[name][run]
        policy = self.optimizers["policy"]
        assert isinstance(policy, StackedAdam)
        policy.reset_momentum(run)
        self.progress.policy_lr_scale[run] /= 2

    @property
    def steps(self) -> Tensor:
        """Return the number of recommender updates of each run, [runs]."""
        items = self.optimizers["items"]
        assert not isinstance(items, StackedSGD)
        return items.steps

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint by name."""
        named = {f"now.{name}": value for name, value in self.parameters().items()}
        named |= {f"best.{name}": value for name, value in self.best.items()}
        named |= {f"rollout.{name}": value for name, value in self.rollout_parameters.items()}
        named |= {f"before.{name}": value for name, value in self.policy_before.items()}
        for group, optimizer in self.optimizers.items():
            named |= {f"{group}.{name}": value for name, value in optimizer.state().items()}
        return named

    def load(self, tensors: dict[str, Tensor], progress: Progress) -> None:
        """Restore a checkpoint; an unfinished epoch is continued."""
        for prefix, state in (
            ("now.", self.parameters()), ("best.", self.best),
            ("rollout.", self.rollout_parameters), ("before.", self.policy_before),
        ):  # fmt: skip
            for name, value in state.items():
                value.copy_(tensors[prefix + name])
        for group, optimizer in self.optimizers.items():
            optimizer.load(strip_prefix(f"{group}.", tensors))
        self.progress = progress
        if progress.predictions:
            progress.epoch -= 1

    def synchronise(self, process_group: ProcessGroup) -> None:
        """Copy parameters and progress of the main process, which alone reads checkpoints."""
        process_group.broadcast_tensors(self.tensors().values())
        self.progress = process_group.broadcast_object(self.progress)


def start(
    jobs: Sequence[Job],
    recommenders: Sequence[Recommender],
    device: str,
    policies: Sequence[Policy] = (),
) -> TrainingState:
    """Return the state of stacked runs before training.

    Args:
        jobs: One per run, with resolved settings.
        recommenders: One per run, all of one shape.
        device: Where to train.
        policies: One per run.
    """
    stack = StackedRecommenders.of(recommenders, device)
    modules = [policy for policy in policies if isinstance(policy, nn.Module) and learns(policy)]
    networks = StackedPolicies.of(modules, device) if modules else None
    decay = torch.tensor([job.config.training.weight_decay for job in jobs], device=device)
    trained = {name: stack.state[name] for name in stack.trainable}
    optimizers: dict[str, Optimizer] = {}
    if jobs[0].config.training.user_lr:
        optimizers["user"] = StackedSGD({"user_prior": trained.pop("user_prior")}, decay)
    undecayed, tables = stack.template.no_weight_decay, _sparse_tables(jobs, stack.template)
    for name in set(tables) & set(trained) - set(undecayed):
        # Weight decay alone would take rows without events to 0, so they start there.
        unread = torch.stack([popularity(job.train) == 0 for job in jobs]).to(device)
        unread &= decay[:, None] > 0
        trained[name][unread] = 0.0
    if tables and isinstance(stack.template, LinearisedDotProduct):
        store_sums(stack)
    optimizers["items"] = (
        LazyAdam(trained, decay, undecayed, tables)
        if tables
        else StackedAdam(trained, decay, undecayed)
    )
    if networks is not None:
        weight = torch.tensor(
            [job.config.policy_training.policy_weight_decay for job in jobs], device=device
        )
        moved = {name: networks.state[name] for name in networks.trainable}
        optimizers["policy"] = StackedAdam(moved, weight)
    count = len(jobs)
    progress = Progress(
        best=[math.inf] * count,
        best_epoch=[0] * count,
        diverged=[""] * count,
        policy_lr_scale=[1.0] * count,
    )
    fit_state = TrainingState(stack, networks, {}, {}, {}, optimizers, progress)
    fit_state.best = _copy(fit_state.parameters())
    fit_state.rollout_parameters = _copy(fit_state.parameters())
    fit_state.policy_before = _copy(fit_state.policy_parameters())
    return fit_state


def _copy(state: StateDict) -> StateDict:
    return {name: value.clone() for name, value in state.items()}


def store_sums(stack: StackedRecommenders) -> None:
    """Replace `stored_sums` by the sums over all items; see `LinearisedDotProduct`."""
    with torch.no_grad():
        stack.state["stored_sums"] = stack.call(lambda model: model.item_sums())


def _sparse_tables(jobs: Sequence[Job], model: Recommender) -> tuple[str, ...]:
    """Return the tables that get sparse updates: those of which a batch reads few rows."""
    configs = [job.config for job in jobs]
    if any(policy_of(config).keeps_all for config in configs):
        return ()
    negatives = 0
    if isinstance(model.loss, SampledLoss):
        negatives = model.loss.negatives
        if not isinstance(model, LinearisedDotProduct) or model.has_categories:
            return ()  # the inner loop reads all items, or a step changes the vectors of all
    elif model.loss.listwise:
        return ()
    most = max(config.sketch.size for config in configs) + 1
    widest = most * max(config.training.batch_size for config in configs) + negatives
    return model.item_tables if 0 < SPARSE_FACTOR * widest < model.items else ()
