"""Whole epochs of the product, and where their time goes. Runs in a child of its own.

Phases are found from outside, with the product's own pieces: a walk, an epoch in which only the
recommender learns, one in which the policy learns too, and one in which the policy is given its
credit for free. Each is timed as a whole, so CUDA graphs stay as they are; credit and policy are
differences.
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
from dips.stream.users import Columns
from dips.studies.checks import describe, describe_policy, device_of, fitted, split
from dips.training import policy_gradients as policy_learning
from dips.training.batches import Whole
from dips.training.config import TrainConfig
from dips.training.recipes import build_config
from dips.training.rollouts import Job, TrainingRollouts
from dips.training.trainer import TrainingState, Watch, fit, learn_epoch, start

WHOLE = {"policy_warmup_epochs": 0, "policy_freeze_epochs": 0, "revert_tolerance": 0.0}
"""Every epoch does all there is to do."""
PROFILED = 8
"""Lessons of the policy that a profile looks at."""


class Setting(NamedTuple):
    """Data and settings of a measurement."""

    parts: Parts
    config: TrainConfig

    @classmethod
    def of(cls, data: Interactions, recipe: str, flags: Mapping[str, Any]) -> Setting:
        """As `dips train` would have it, with batches that suit the data."""
        config = build_config(recipe, None, flags, implicit_data=not data.explicit)
        return cls.fitted(split(data, config), config)

    @classmethod
    def fitted(cls, parts: Parts, config: TrainConfig) -> Setting:
        """Settings with all decided that depends on who trains."""
        return cls(parts, fitted(parts[0], config))

    @property
    def train(self) -> Interactions:
        """Who trains."""
        return self.parts[0]

    def at_once(self) -> Setting:
        """The same with all users in one walk, unless the walk is cut by stretches."""
        return self if self.config.stretch else self._replace(config=self.config.but(users=0))


@dataclass(eq=False)
class Run:
    """A run that has seen nothing yet."""

    job: Job
    fitting: TrainingState
    columns: Columns
    device: str
    low: float
    high: float

    @classmethod
    def begin(cls, setting: Setting) -> Run:
        """Recommender and policy at their start."""
        (train, valid, _), config = setting
        spec, device = describe(train, config), device_of(config)
        job = Job(train, valid, config)
        policy = build_policy(describe_policy(train, config), config.seed)
        fitting = start([job], [make_recommender(spec, config.seed)], device, [policy])
        return cls(job, fitting, Columns.of(train, device), device, spec.low, spec.high)

    def validate(self, stack: StackedRecommenders, trace: Trace) -> list[float]:
        """The deciding metric; lower is better."""
        return [scores.headline for scores in evaluate(stack, trace, low=self.low, high=self.high)]

    def epochs(self) -> list[Took]:
        """Train; how long it took until each epoch was done, validation and all."""
        clock, found = Clock(self.device), list[Took]()
        self.train(lambda fitting: found.append(clock.took()))
        return found

    def train(self, watch: Watch, save: Watch = lambda fitting: None) -> None:
        """Fit until the epochs are over."""
        fit(self.fitting, [self.job], self.columns, self.validate, watch, save)


def whole_epochs(setting: Setting) -> dict[str, Any]:
    """The quickest epoch after a first one, its pace and the peak of memory."""
    peak = Peak(device_of(setting.config))
    run = Run.begin(setting)
    took = best(later.less(earlier) for earlier, later in pairwise(run.epochs()))
    config = setting.config
    return {
        "interactions": len(setting.train),
        "epoch": took._asdict(),
        "peak_bytes": peak.bytes(),
        "batch": config.batch,
        "policy_batch_size": config.policy_batch_size,
        "users": config.users,
        "stretch": config.stretch,
    }


def until(setting: Setting, target: float) -> dict[str, Any]:
    """How long training takes to a validation as good as the target; programs are made in it."""
    run = Run.begin(setting)
    clock, scores = Clock(run.device), list[float]()

    class Reached(Exception):
        """Good enough."""

    def after(fitting: TrainingState) -> None:
        scores.append(fitting.progress.history[-1]["valid"][0])
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
    """What an epoch of one walk takes by phase; the walk takes the validation users along.

    However many walks a policy takes in an epoch, all users walk once.
    """
    run = Run.begin(setting.at_once())
    learner, device = Learner(run), run.device
    learner.learn(run.fitting)  # warm up
    found = {"rollout": timed(device, learner.walk, times)}
    alone = replace(run.fitting, policies=None)
    found["recommender"] = timed(device, lambda: learner.learn(alone), times)
    if run.fitting.policies is not None:
        everything = timed(device, lambda: learner.learn(run.fitting), times)
        with credit_for_free():
            learner.learn(run.fitting)  # so that the credit is there
            free = timed(device, lambda: learner.learn(run.fitting), times)
        found |= {"credit": everything.less(free), "policy": free.less(found["recommender"])}
    stack, trace = run.fitting.stack, learner.validation
    found["validation"] = timed(device, lambda: run.validate(stack, trace), times)
    return found


class Learner:
    """The pieces of an epoch of whole histories, each to be called alone."""

    def __init__(self, run: Run) -> None:
        self.run, self.walks = run, TrainingRollouts([run.job], run.columns)
        if self.walks.live:
            raise SystemExit("phases are told for whole histories only: leave users and stretch 0")
        run.fitting.progress.epoch = 1
        self.training, self.validation = self.walk()

    def walk(self) -> tuple[Trace, Trace]:
        """Sketches of everybody, anew."""
        players = self.run.fitting.players(self.run.fitting.parameters())
        walks = TrainingRollouts(
            [self.run.job], self.run.columns
        )  # what is static would be remembered
        training, validation = walks.sketches(1, players, players)
        assert training is not None
        return training, validation

    def learn(self, fitting: TrainingState) -> None:
        """One epoch from the training sketches."""
        learn_epoch(fitting, [self.run.job], [Whole(self.training)], self.walks.clock)
        progress = fitting.progress
        progress.user_batches, progress.taken, progress.total = 0, [], []

    def teach(self, count: int) -> None:
        """Some of the policy's gradients alone."""
        config, fitting, clock = self.run.job.config, self.run.fitting, self.walks.clock
        assert fitting.policies is not None
        assert isinstance(self.training, StoredTrace)
        for policy_batch in Whole(self.training).policy_batches(clock, [config.seed], 1, config)[
            :count
        ]:
            policy_learning.policy_gradients(
                fitting.stack, fitting.policies, self.training, clock, policy_batch, config
            )


@contextmanager
def credit_for_free() -> Iterator[None]:
    """Whatever credit a policy is told first, it is told again without computing it."""

    def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
        known: list[Any] = []

        def answer(*arguments: Any, **named: Any) -> Any:
            if not known:
                known.append(function(*arguments, **named))
            return known[0]

        return answer

    with (
        patch.object(policy_learning, "_effects", remembered(policy_learning._effects)),
        patch.object(policy_learning, "_credit", remembered(policy_learning._credit)),
    ):
        yield


def profiles(setting: Setting, rows: int = 10) -> dict[str, str]:
    """What the operators of a walk, and of the policy's lessons with their credit, take."""
    run = Run.begin(setting.at_once())
    learner = Learner(run)
    actions: dict[str, Callable[[], object]] = {"rollout": learner.walk}
    if run.fitting.policies is not None:
        actions["credit and policy"] = lambda: learner.teach(PROFILED)
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
