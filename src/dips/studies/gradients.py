"""The paper's gradient study: how true are the policy gradients of DiPS and DiPS@1?

Training goes on at stretch 1 from a finished run, with dropout off. At sampled steps the gradient
of the mean next-item loss in every parameter of the policy is computed three times: by the queue
(candidates that older parameters led to included, as training has it), by a queue of length 1, and
truly (`credit.truth`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dips.credit.true_gradient import history, true_gradient
from dips.data.interactions import Interactions
from dips.errors import ConfigError, DataError, TrainingDiverged
from dips.evaluation.gradient_quality import PAPER, Kept, alignment, compare_gradients, pooled
from dips.model.trained_model import TrainedModel
from dips.policy.network import Network
from dips.policy.registry import build_policy
from dips.policy.stacked import StackedPolicies
from dips.recommender.stacked import StackedRecommenders, State
from dips.rollout.trace import StoredTrace
from dips.stream.users import Columns
from dips.studies.checks import device_of, fitted
from dips.training.batches import Block, Stretch
from dips.training.config import TrainConfig
from dips.training.epoch import learn_epoch
from dips.training.policy_batches import Clock
from dips.training.policy_gradients import policy_gradients
from dips.training.recipes import RECIPES
from dips.training.rollouts import Job, TrainingRollouts
from dips.training.state import TrainingState, start

RATES = ("learning_rate", "user_lr", "policy_lr")
DECAYS = ("weight_decay", "policy_weight_decay")
"""Settings that belong to so many updates."""

Watch = Callable[[int, int], None]
"""Told how many of the sampled steps are done, of how many."""


@dataclass(frozen=True)
class Moment:
    """One sampled step; the fields of both methods by their name, `dips` and `dips@1`."""

    step: int
    users: int
    entries: int
    kept: dict[str, Kept]
    aligned: dict[str, dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        methods = {name: {**self.kept[name].shares(), **self.aligned[name]} for name in PAPER}
        nonzero = self.kept["dips"].nonzero
        return {"step": self.step, "users": self.users, "nonzero": nonzero, **methods}


@dataclass(frozen=True)
class GradientStudy:
    """What the study found."""

    about: dict[str, Any]
    """Data and settings."""
    moments: list[Moment]

    def summary(self) -> dict[str, dict[str, float]]:
        """By method: shares over the entries of all sampled steps; other numbers are means."""
        return {
            name: {
                **pooled(moment.kept[name] for moment in self.moments).shares(),
                **_means([moment.aligned[name] for moment in self.moments]),
            }
            for name in PAPER
        }

    def to_dict(self) -> dict[str, Any]:
        """What gradients.json holds."""
        return {
            **self.about,
            "steps": len(self.moments),
            "entries": self.moments[0].entries,
            "ours": self.summary(),
            "paper_ml_1m": PAPER,
            "by_step": [moment.to_dict() for moment in self.moments],
        }


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each number."""
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
    watch: Watch = lambda done, total: None,
) -> GradientStudy:
    """Train on from a bundle with some users of the data, and compare gradients on the way.

    `data` has the bundle's vocabulary; `config` are the settings of the run.
    """
    for name, value in {"users": users, "steps": steps, "queue": queue}.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}: it must be at least 1")
    policy = _without_dropout(trained)
    first = trained.size + trained.periods[0]
    rng = np.random.default_rng(seed)
    some = _some_users(data, users, first, longest, rng)
    config = _continued(config, some.users, queue, data)
    device = device_of(config)
    job = Job(some, some, config)
    fitting = start([job], [trained.recommender], device, [policy])
    end = int(some.lengths.max())
    chosen = np.sort(rng.permutation(np.arange(first, end))[:steps]).tolist()
    columns = Columns.of(some, device, trained.sides)
    moments = _moments(fitting, job, columns, chosen, tolerance, watch)
    about = {
        "data": data.name,
        "policy": config.policy,
        "size": trained.size,
        "periods": list(trained.periods),
        "users": some.users,
        "longest": end,
        "queue": queue,
        "seed": seed,
        "tolerance": tolerance,
        "rates": {name: getattr(config, name) for name in RATES},
    }
    return GradientStudy(about, moments)


def _without_dropout(trained: TrainedModel) -> Network:
    """A copy of the run's network that leaves nothing out."""
    name, policy = trained.policy_spec.name, trained.policy
    if not isinstance(policy, Network):
        raise ConfigError(
            f"the policy '{name}' has no gradient to study: give a run of --policy dips or dips@1"
        )
    if policy.required_signals:
        raise ConfigError(
            f"the policy '{name}' asks the recommender, and a replay cannot answer for every "
            "interaction: give a run of --policy dips or dips@1"
        )
    fresh = build_policy(replace(trained.policy_spec, dropout=0.0))
    assert isinstance(fresh, Network)
    fresh.load_state_dict(policy.state_dict())
    return fresh


def _some_users(
    data: Interactions, count: int, first: int, longest: int, rng: np.random.Generator
) -> Interactions:
    """Users whom a first refresh at step `first` can help, drawn; their histories cut."""
    if longest <= first:
        raise ConfigError(f"longest is {longest}: the first choice comes after {first}; give more")
    long = np.flatnonzero(data.lengths > first)
    if len(long) == 0:
        raise DataError(f"{data.name}: no user has more than {first} interactions; give other data")
    some = data.select(np.sort(rng.permutation(long)[:count]))
    cut = np.minimum(some.lengths, longest)
    return replace(some, lengths=cut, warmup=np.zeros_like(cut))


def _continued(config: TrainConfig, users: int, queue: int, data: Interactions) -> TrainConfig:
    """The run's settings at stretch 1, step by step as in Algorithm 1.

    Rates are those of one update a step: the run's own if it was trained so, else the recipe
    paper's; in proportion to the users who walk together, as in the paper.
    """
    taught = config if config.stretch == 1 else config.but(**RECIPES["paper"])
    share = users / (taught.users or data.users)
    taught = fitted(data, taught)
    rates = {name: getattr(taught, name) * share for name in RATES}
    decays = {name: getattr(taught, name) for name in DECAYS}
    return config.but(
        **rates,
        **decays,
        users=users,
        stretch=1,
        queue=queue,
        credit="identity",
        estimator="straight-through",
        choice="greedy",
        lr_schedule="constant",
        policy_warmup_epochs=0,
        policy_freeze_epochs=0,
        epochs=1,
        device="auto",
    )


def _moments(
    fitting: TrainingState,
    job: Job,
    columns: Columns,
    chosen: Sequence[int],
    tolerance: float,
    watch: Watch,
) -> list[Moment]:
    """Walk and train step by step as far as the last chosen step, and look at the chosen ones."""
    walks, moments = TrainingRollouts([job], columns), list[Moment]()

    def looked_at(blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            assert isinstance(block, Stretch)
            if block.span.start == chosen[len(moments)]:
                moments.append(_look(fitting, walks.clock, block, job.config, tolerance))
                watch(len(moments), len(chosen))
            if len(moments) == len(chosen):
                return
            yield block

    fitting.progress.epoch = 1
    blocks = walks.blocks(1, fitting.stack, fitting.policies)
    learn_epoch(fitting, [job], looked_at(blocks), walks.clock)
    if fitting.progress.diverged[0]:
        raise TrainingDiverged(fitting.progress.diverged[0])
    return moments


def _look(
    fitting: TrainingState, clock: Clock, block: Stretch, config: TrainConfig, tolerance: float
) -> Moment:
    """Compare both approximations with the truth in float64, before anything moves."""
    trace, t = block.trace, block.span.start
    assert fitting.policies is not None
    assert isinstance(trace, StoredTrace)
    stack = StackedRecommenders(fitting.stack.template, _doubled(fitting.stack.state))
    policies = StackedPolicies(fitting.policies.template, _doubled(fitting.policies.state))
    columns = replace(trace.columns, rating=trace.columns.rating.double())
    trace = replace(trace, columns=columns)
    past = history(trace, (block.base + t)[block.length > t])
    true = _flat(true_gradient(stack, policies, past, config.size, config.schedule))
    if not true.isfinite().all():
        raise TrainingDiverged(f"training on from this run, step {t} is no longer a number")
    kept, aligned = {}, {}
    for name, queue in {"dips": config.queue, "dips@1": 1}.items():
        own = config.but(queue=queue)
        (policy_batch,) = block.policy_batches(clock, [own.seed], 1, own)
        found = _flat(policy_gradients(stack, policies, trace, clock, policy_batch, own))
        kept[name] = compare_gradients(true, found, tolerance)
        aligned[name] = alignment(true, found)
    return Moment(t, len(past.item), len(true), kept, aligned)


def _doubled(state: State) -> State:
    """The same numbers in float64; whole ones stay whole."""
    return {n: value.double() if value.is_floating_point() else value for n, value in state.items()}


def _flat(gradient: State) -> Tensor:
    """[entries] of all parameters."""
    return torch.cat([value.flatten() for value in gradient.values()])
