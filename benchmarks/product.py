"""Time full training epochs and their phases; runs in a child process.

Phases are timed with the functions of `dips.training`: a rollout, an epoch that trains only the
recommender, one that also trains the policy, and one whose credit is cached. Each is timed as a
whole, so that CUDA graphs are not cut. Credit and policy are differences of these times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import Clock, Peak, Took, best, timed
from dips.data.interactions import Interactions
from dips.data.splitting import Parts
from dips.evaluation.progressive import evaluate
from dips.policy.registry import build_policy
from dips.recommender.registry import make_recommender
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import StoredTrace, Trace
from dips.stream.users import EventColumns
from dips.studies.checks import device_of, policy_spec, recommender_spec, resolved, split
from dips.training import policy_gradients as policy_gradients_module
from dips.training.batches import FullHistoryBlock
from dips.training.config import TrainConfig
from dips.training.recipes import build_config
from dips.training.rollouts import Job, TrainingRollouts
from dips.training.trainer import StateCallback, TrainingState, fit, start, train_epoch

WHOLE = {"policy_warmup_epochs": 0, "policy_freeze_epochs": 0, "revert_tolerance": 0.0}
"""Settings with which every epoch trains the policy, without reverting it."""
PROFILED_BATCHES = 8
"""Number of policy batches that are profiled."""


class Setting(NamedTuple):
    """Data and settings of a measurement."""

    parts: Parts
    config: TrainConfig

    @classmethod
    def of(cls, data: Interactions, recipe: str, flags: Mapping[str, Any]) -> Setting:
        """Return the settings that `dips train` would use for the data."""
        config = build_config(recipe, None, flags)
        return cls.resolved(split(data, config), config)

    @classmethod
    def resolved(cls, parts: Parts, config: TrainConfig) -> Setting:
        """Return settings that are resolved for the training users."""
        return cls(parts, resolved(parts[0], config))

    @property
    def train(self) -> Interactions:
        """Training users."""
        return self.parts[0]

    def in_one_user_batch(self) -> Setting:
        """Return settings with all users in one rollout, unless there is an update interval."""
        return (
            self
            if self.config.training.update_interval
            else self._replace(config=self.config.but(user_batch=None))
        )


@dataclass(eq=False)
class Run:
    """A run before its first epoch."""

    job: Job
    state: TrainingState
    columns: EventColumns
    device: str
    low: float
    high: float

    @classmethod
    def begin(cls, setting: Setting) -> Run:
        """Return a run with the initial recommender and policy."""
        (train, valid, _), config = setting
        spec, device = recommender_spec(train, config), device_of(config)
        job = Job(train, valid, config)
        policy = build_policy(policy_spec(train, config), config.training.training_seed)
        state = start(
            [job], [make_recommender(spec, config.training.training_seed)], device, [policy]
        )
        return cls(job, state, EventColumns.of(train, device), device, spec.low, spec.high)

    def validate(self, stack: StackedRecommenders, trace: Trace) -> list[float]:
        """Return the primary metric of each run; lower is better."""
        return [scores.objective for scores in evaluate(stack, trace, low=self.low, high=self.high)]

    def epochs(self) -> list[Took]:
        """Train, and return the time to the end of each epoch, with its validation."""
        clock, found = Clock(self.device), list[Took]()
        self.train(lambda state: found.append(clock.took()))
        return found

    def train(self, on_epoch: StateCallback, save: StateCallback = lambda state: None) -> None:
        """Train all epochs."""
        fit(self.state, [self.job], self.columns, self.validate, on_epoch, save)


def whole_epochs(setting: Setting) -> dict[str, Any]:
    """Return the fastest epoch after the first one, and the peak memory."""
    peak = Peak(device_of(setting.config))
    run = Run.begin(setting)
    took = best(later.less(earlier) for earlier, later in pairwise(run.epochs()))
    config = setting.config
    return {
        "interactions": len(setting.train),
        "epoch": took._asdict(),
        "peak_bytes": peak.bytes(),
        "batch_size": config.training.batch_size,
        "policy_batch_size": config.policy_training.policy_batch_size,
        "user_batch": config.training.user_batch,
        "update_interval": config.training.update_interval,
    }


def until(setting: Setting, target: float) -> dict[str, Any]:
    """Return the training time until validation reaches a target; compilation is included."""
    run = Run.begin(setting)
    clock, scores = Clock(run.device), list[float]()

    class Reached(Exception):
        """The target is reached."""

    def after(state: TrainingState) -> None:
        scores.append(state.progress.history[-1]["valid"][0])
        if scores[-1] <= target:
            raise Reached

    reached = False
    try:
        run.train(after)
    except Reached:
        reached = True
    took = clock.took()._asdict()
    return {"reached": reached, "took": took, "epochs": len(scores), "valid": scores[-1]}


def phases(setting: Setting, times: int = 1) -> dict[str, Took]:
    """Return the time of each phase of an epoch with one rollout of all users.

    The rollout includes the validation users.
    """
    run = Run.begin(setting.in_one_user_batch())
    epoch, device = EpochPhases(run), run.device
    epoch.train(run.state)  # warm up
    found = {"rollout": timed(device, epoch.roll_out, times)}
    recommender_only = replace(run.state, policies=None)
    found["recommender"] = timed(device, lambda: epoch.train(recommender_only), times)
    if run.state.policies is not None:
        total = timed(device, lambda: epoch.train(run.state), times)
        with cached_credit():
            epoch.train(run.state)  # fills the cache
            cached = timed(device, lambda: epoch.train(run.state), times)
        found |= {"credit": total.less(cached), "policy": cached.less(found["recommender"])}
    stack, trace = run.state.stack, epoch.validation
    found["validation"] = timed(device, lambda: run.validate(stack, trace), times)
    return found


class EpochPhases:
    """The phases of an epoch over full histories, as single functions."""

    def __init__(self, run: Run) -> None:
        self.run, self.rollouts = run, TrainingRollouts([run.job], run.columns)
        if self.rollouts.interleaved:
            raise SystemExit("phases need full histories: leave user_batch and update_interval out")
        run.state.progress.epoch = 1
        self.training, self.validation = self.roll_out()

    def roll_out(self) -> tuple[Trace, Trace]:
        """Return new sketches of training and validation users."""
        models = self.run.state.models_with(self.run.state.parameters())
        # A new object: rollouts of static policies are cached.
        rollouts = TrainingRollouts([self.run.job], self.run.columns)
        training, validation = rollouts.traces(1, models, models)
        assert training is not None
        return training, validation

    def train(self, state: TrainingState) -> None:
        """Train one epoch on the training sketches."""
        blocks = [FullHistoryBlock(self.training)]
        train_epoch(state, [self.run.job], blocks, self.rollouts.refresh_table)
        progress = state.progress
        progress.end_epoch()

    def policy_gradients(self, count: int) -> None:
        """Compute the gradients of some policy batches."""
        config, state = self.run.job.config, self.run.state
        refreshes, seeds = self.rollouts.refresh_table, [config.training.training_seed]
        assert state.policies is not None
        assert isinstance(self.training, StoredTrace)
        batches = FullHistoryBlock(self.training).policy_batches(refreshes, seeds, 1, config)
        for batch in batches[:count]:
            policy_gradients_module.policy_gradients(
                state.stack, state.policies, self.training, refreshes, batch, config
            )


@contextmanager
def cached_credit() -> Iterator[None]:
    """Return the first credit again for all later policy batches."""

    def cached(function: Callable[..., Any]) -> Callable[..., Any]:
        known: list[Any] = []

        def answer(*arguments: Any, **named: Any) -> Any:
            if not known:
                known.append(function(*arguments, **named))
            return known[0]

        return answer

    module = policy_gradients_module
    with patch.object(module, "_credit", cached(module._credit)):
        yield


def profiles(setting: Setting, rows: int = 10) -> dict[str, str]:
    """Return profiler tables of a rollout, and of policy batches with their credit."""
    run = Run.begin(setting.in_one_user_batch())
    epoch = EpochPhases(run)
    actions: dict[str, Callable[[], object]] = {"rollout": epoch.roll_out}
    if run.state.policies is not None:
        actions["credit and policy"] = lambda: epoch.policy_gradients(PROFILED_BATCHES)
    cuda = run.device.startswith("cuda")
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    key = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    found = {}
    for name, action in actions.items():
        action()  # warm up
        with profile(activities=kinds) as seen:
            action()
            if cuda:
                torch.cuda.synchronize()
        found[name] = seen.key_averages().table(sort_by=key, row_limit=rows)
    return found
