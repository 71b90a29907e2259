"""Compare the policy gradients of DiPS and DiPS@1 with the true gradient, as in the paper.

Training continues from a finished run with one update per step and without dropout. At sampled
steps the gradient of the mean next-item loss with respect to the policy is computed three times:

- by the queue, with candidates of older parameters, as in training (DiPS);
- by a queue of length 1 (DiPS@1);
- exactly, by `credit.true_gradient`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dips.credit.true_gradient import history, true_gradient
from dips.data.interactions import Interactions
from dips.errors import ConfigError, DataError, TrainingDiverged
from dips.evaluation.gradient_quality import (
    PAPER,
    SignCounts,
    alignment,
    compare_gradients,
    pool_counts,
)
from dips.model.trained_model import TrainedModel
from dips.policy.network import Network
from dips.policy.registry import build_policy
from dips.policy.stacked import StackedPolicies
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.rollout.trace import StoredTrace
from dips.stream.users import EventColumns
from dips.studies.checks import device_of, resolved
from dips.studies.progress import CountCallback
from dips.training.batches import IntervalBlock, TrainingBlock
from dips.training.config import TrainConfig
from dips.training.epoch import train_epoch
from dips.training.policy_batches import RefreshTable
from dips.training.policy_gradients import policy_gradients
from dips.training.recipes import RECIPES
from dips.training.rollouts import Job, TrainingRollouts
from dips.training.state import TrainingState, start

RATES = ("learning_rate", "user_lr", "policy_lr")
DECAYS = ("weight_decay", "policy_weight_decay")
"""Settings whose values fit a number of updates per epoch."""


@dataclass(frozen=True)
class GradientSample:
    """Gradients at one sampled step, compared for the methods `dips` and `dips@1`."""

    step: int
    """Number of interactions before the decision."""
    users: int
    """Users with an interaction at this step."""
    entries: int
    """Number of policy parameters."""
    signs: dict[str, SignCounts]
    """Signs of the entries, by method."""
    alignment: dict[str, dict[str, float]]
    """Cosine similarity and relative norm, by method."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        methods = {name: {**self.signs[name].shares(), **self.alignment[name]} for name in PAPER}
        nonzero = self.signs["dips"].nonzero
        return {"step": self.step, "users": self.users, "nonzero": nonzero, **methods}


@dataclass(frozen=True)
class GradientStudy:
    """Result of the gradient study."""

    about: dict[str, Any]
    """Data and settings."""
    samples: list[GradientSample]

    def summary(self) -> dict[str, dict[str, float]]:
        """Return by method the shares over all sampled entries, and means of the other values."""
        return {
            name: {
                **pool_counts(sample.signs[name] for sample in self.samples).shares(),
                **_means([sample.alignment[name] for sample in self.samples]),
            }
            for name in PAPER
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the content of gradients.json."""
        return {
            **self.about,
            "steps": len(self.samples),
            "entries": self.samples[0].entries,
            "ours": self.summary(),
            "paper_ml_1m": PAPER,
            "by_step": [sample.to_dict() for sample in self.samples],
        }


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each value."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def study_gradients(
    trained: TrainedModel,
    config: TrainConfig,
    data: Interactions,
    *,
    users: int,
    steps: int,
    longest: int,
    queue: int,
    seed: int,
    tolerance: float,
    on_progress: CountCallback = lambda done, total: None,
) -> GradientStudy:
    """Continue training from a model with some users, and compare gradients at sampled steps.

    Args:
        trained: Model of a run of `dips` or `dips@1`.
        config: Settings of the run.
        data: Users with the model's item indices.
        users: Number of users to sample.
        steps: Number of steps to sample.
        longest: Histories are cut after this many interactions.
        queue: Length of the queue of DiPS (Q).
        seed: Fixes users and steps.
        tolerance: Share of the largest entry up to which an entry counts as zero.
        on_progress: Called after each sampled step.

    Raises:
        ConfigError: If the policy has no network, or a number is below 1.
        DataError: If no history is long enough for a decision.
        TrainingDiverged: If a parameter or a gradient is not finite.
    """
    for name, value in {"users": users, "steps": steps, "queue": queue}.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}: it must be at least 1")
    policy = _without_dropout(trained)
    first = trained.size + trained.periods[0]
    rng = np.random.default_rng(seed)
    some = _sample_users(data, users, first, longest, rng)
    config = _continued_config(config, some.users, queue, data)
    device = device_of(config)
    job = Job(some, some, config)
    state = start([job], [trained.recommender], device, [policy])
    end = int(some.lengths.max())
    chosen = np.sort(rng.permutation(np.arange(first, end))[:steps]).tolist()
    columns = EventColumns.of(some, device, trained.side)
    samples = _sample_gradients(state, job, columns, chosen, tolerance, on_progress)
    about = {
        "data": data.name,
        "policy": config.sketch.policy,
        "size": trained.size,
        "periods": list(trained.periods),
        "users": some.users,
        "longest": end,
        "queue": queue,
        "seed": seed,
        "tolerance": tolerance,
        "rates": {name: config[name] for name in RATES},
    }
    return GradientStudy(about, samples)


def _without_dropout(trained: TrainedModel) -> Network:
    """Return a copy of the run's policy network without dropout."""
    name, policy = trained.policy_spec.name, trained.policy
    if not isinstance(policy, Network):
        raise ConfigError(
            f"the policy '{name}' has no gradient to study: give a run of --policy dips or dips@1"
        )
    if policy.required_signals:
        raise ConfigError(
            f"the policy '{name}' reads signals of the recommender, which the true gradient "
            "does not support: give a run of --policy dips or dips@1"
        )
    fresh = build_policy(replace(trained.policy_spec, dropout=0.0))
    assert isinstance(fresh, Network)
    fresh.load_state_dict(policy.state_dict())
    return fresh


def _sample_users(
    data: Interactions, count: int, first: int, longest: int, rng: np.random.Generator
) -> Interactions:
    """Sample users with an interaction after the first refresh; cut their histories."""
    if longest <= first:
        raise ConfigError(f"--longest is {longest}: it must be above {first}, the first refresh")
    long = np.flatnonzero(data.lengths > first)
    if len(long) == 0:
        raise DataError(f"{data.name}: no user has more than {first} interactions; give other data")
    some = data.select(np.sort(rng.permutation(long)[:count]))
    cut = np.minimum(some.lengths, longest)
    return replace(some, lengths=cut, warmup=np.zeros_like(cut))


def _continued_config(
    config: TrainConfig, users: int, queue: int, data: Interactions
) -> TrainConfig:
    """Return the run's settings with one update per step, as in Algorithm 1.

    Learning rates are those of the run if it had one update per step, else of the recipe `paper`.
    They are scaled by the share of users, as in the paper.
    """
    source = config if config.training.update_interval == 1 else config.but(**RECIPES["paper"])
    share = users / (source.training.user_batch or data.users)
    source = resolved(data, source)
    rates = {name: source[name] and source[name] * share for name in RATES}
    decays = {name: source[name] for name in DECAYS}
    continued = config.but(
        **rates,
        **decays,
        user_batch=users,
        update_interval=1,
        queue=queue,
        credit="identity",
        estimator="straight-through",
        selection="greedy",
        lr_schedule="constant",
        policy_warmup_epochs=0,
        policy_freeze_epochs=0,
        epochs=1,
        device=None,
    )
    return resolved(data, continued)


def _sample_gradients(
    state: TrainingState,
    job: Job,
    columns: EventColumns,
    chosen: Sequence[int],
    tolerance: float,
    on_progress: CountCallback,
) -> list[GradientSample]:
    """Train step by step up to the last sampled step, and compare gradients at sampled steps."""
    rollouts, samples = TrainingRollouts([job], columns), list[GradientSample]()

    def compared(blocks: Iterable[TrainingBlock]) -> Iterator[TrainingBlock]:
        for block in blocks:
            assert isinstance(block, IntervalBlock)
            if block.span.start == chosen[len(samples)]:
                samples.append(
                    _compare_at_step(state, rollouts.refresh_table, block, job.config, tolerance)
                )
                on_progress(len(samples), len(chosen))
            if len(samples) == len(chosen):
                return
            yield block

    state.progress.epoch = 1
    blocks = rollouts.blocks(1, state.stack, state.policies)
    train_epoch(state, [job], compared(blocks), rollouts.refresh_table)
    if state.progress.diverged[0]:
        raise TrainingDiverged(state.progress.diverged[0])
    return samples


def _compare_at_step(
    state: TrainingState,
    refresh_table: RefreshTable,
    block: IntervalBlock,
    config: TrainConfig,
    tolerance: float,
) -> GradientSample:
    """Compare both approximations with the true gradient in float64, before the update."""
    trace, t = block.trace, block.span.start
    assert state.policies is not None
    assert isinstance(trace, StoredTrace)
    stack = StackedRecommenders(state.stack.template, _as_float64(state.stack.state))
    policies = StackedPolicies(state.policies.template, _as_float64(state.policies.state))
    columns = replace(trace.columns, rating=trace.columns.rating.double())
    trace = replace(trace, columns=columns)
    past = history(trace, (block.base + t)[block.length > t])
    true = _flatten(
        true_gradient(stack, policies, past, config.sketch.size, config.sketch.schedule)
    )
    if not true.isfinite().all():
        raise TrainingDiverged(f"the true gradient at step {t} is not finite")
    signs, aligned = {}, {}
    for name, queue in {"dips": config.policy_training.queue, "dips@1": 1}.items():
        own = config.but(queue=queue)
        (policy_batch,) = block.policy_batches(refresh_table, [own.training.training_seed], 1, own)
        found = _flatten(policy_gradients(stack, policies, trace, refresh_table, policy_batch, own))
        signs[name] = compare_gradients(true, found, tolerance)
        aligned[name] = alignment(true, found)
    return GradientSample(t, len(past.item), len(true), signs, aligned)


def _as_float64(state: StateDict) -> StateDict:
    """Return the parameters in float64; integers are not changed."""
    return {n: value.double() if value.is_floating_point() else value for n, value in state.items()}


def _flatten(gradient: StateDict) -> Tensor:
    """Return all entries of a gradient as one vector, [entries]."""
    return torch.cat([value.flatten() for value in gradient.values()])
