"""Time of an epoch of Algorithm 1, extrapolated from some of its steps.

Each function runs in a child process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measure import Clock, Peak, Took
from benchmarks.product import Run, Setting
from dips.policy.paper_network import PaperNetwork
from dips.policy.registry import build_policy
from dips.policy.stacked import StackedPolicies
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.registry import make_recommender
from dips.recommender.stacked import StackedRecommenders
from dips.studies.checks import device_of, policy_spec, recommender_spec
from dips.training.algorithm1 import Algorithm1, DenseUserBatch
from dips.training.rollouts import TrainingRollouts

GROUPS = 8
"""Groups of time steps; one step of each is timed."""
MAX_REPEATS, MIN_REPEATS = 50, 2
"""Timed steps per group; the minimum holds even if the time is over."""
PHASES = ("rollout", "recommender", "policy")
"""Of a step; the credit comes with the recommender's gradient."""
RATES = ("learning_rate", "user_lr", "policy_lr")


class StepShape(NamedTuple):
    """Users and queue length of a time step: its cost depends on both."""

    users: int
    queued: int

    @property
    def work(self) -> int:
        """Cost of the step, up to a constant."""
        return self.users * (1 + self.queued)


def step_shapes(lengths: Sequence[int], size: int, queue: int) -> Iterator[StepShape]:
    """Yield the shape of every time step of a user batch with histories of these lengths."""
    found = np.asarray(lengths)
    for t in range(int(found.max())):
        yield StepShape(int((found > t).sum()), max(0, min(t - size, queue)))


def synthetic_batch(algorithm: Algorithm1, shape: StepShape) -> tuple[DenseUserBatch, int]:
    """Return a batch of random users just before a step of this shape, and that step."""
    config, like = algorithm.config, algorithm.theta.bias
    t = config.sketch.size + shape.queued
    generator = torch.Generator().manual_seed(0)
    item = torch.randint(algorithm.items, (shape.users, t + 1), generator=generator).to(like.device)
    rating = torch.randint(1, 6, item.shape, generator=generator).to(like)
    batch = DenseUserBatch(
        item, rating, [t + 1] * shape.users, algorithm.items, config.policy_training.queue
    )
    width = config.sketch.size + 1
    for decision in range(max(0, shape.queued - 1)):  # the step itself adds the last one
        some = item[:, decision : decision + width]
        batch.append(torch.zeros_like(batch.z).scatter_(1, some, 1.0))
    batch.z.scatter_(1, item[:, max(0, t - 1 - config.sketch.size) : t - 1], 1.0)
    batch.y.scatter_(1, item, rating)
    return batch, t


def _make(
    setting: Setting,
) -> tuple[Algorithm1, DotProduct | LinearisedDotProduct, PaperNetwork]:
    """Return Algorithm 1 with the library's initial parameters, and the modules they are from."""
    config, device = setting.config, device_of(setting.config)
    spec = recommender_spec(setting.train, config)
    model = make_recommender(spec, config.training.seed).to(device)
    network = build_policy(policy_spec(setting.train, config), config.training.seed)
    assert isinstance(model, DotProduct | LinearisedDotProduct)
    assert isinstance(network, PaperNetwork)
    return Algorithm1(model, network.to(device), config), model, network


def time_steps(setting: Setting, seconds: float) -> dict[str, Any]:
    """Time some steps of Algorithm 1 and return the extrapolated time of an epoch.

    The cost of a step depends on the number of active users and on the length of their queue. All
    steps of an epoch are sorted by the product of both and cut into groups of equal work. The
    median time of a step of mean work, times the number of steps, counts for each group.
    """
    config, device = setting.config, device_of(setting.config)
    order = np.random.default_rng(config.training.seed).permutation(setting.train.users)
    lengths = setting.train.lengths[order]
    size, queue = config.sketch.size, config.policy_training.queue
    users = config.training.user_batch or len(lengths)
    found = [
        shape
        for low in range(0, len(lengths), users)
        for shape in step_shapes(lengths[low : low + users].tolist(), size, queue)
    ]
    peak = Peak(device)
    algorithm, _, _ = _make(setting)
    batch, t = synthetic_batch(algorithm, max(found, key=lambda shape: shape.work))
    algorithm.step(batch, t)  # warm-up, and the peak of memory
    del batch
    total, timed = np.zeros((1 + len(PHASES), 2)), 0
    clock, groups = Clock(device), list(grouped(found, GROUPS))
    for place, (shape, steps) in enumerate(groups):
        left = seconds - clock.took().wall
        took = _time_steps(algorithm, shape, device, left / (len(groups) - place))
        timed += len(took)
        total += steps * np.median(took, axis=0)
    whole, *phases = (Took(*row)._asdict() for row in total.tolist())
    return {
        "interactions": len(setting.train),
        "listwise": algorithm.listwise,
        "epoch": whole,
        "peak_bytes": peak.bytes(),
        "user_batch": users,
        "update_interval": 1,
        "steps_per_epoch": len(found),
        "steps_timed": timed,
        "phases": dict(zip(PHASES, phases, strict=True)),
    }


def grouped(found: Sequence[StepShape], count: int) -> Iterator[tuple[StepShape, int]]:
    """Yield groups of steps of about equal work: a step of mean work, and the number of steps."""
    ordered = sorted(found, key=lambda shape: shape.work)
    work = np.array([shape.work for shape in ordered])
    edges = np.searchsorted(work.cumsum(), np.linspace(0, work.sum(), count + 1)[1:-1])
    for low, high in zip([0, *edges], [*edges, len(ordered)], strict=True):
        if high > low:
            near = int(np.abs(work[low:high] - work[low:high].mean()).argmin())
            yield ordered[low + near], int(high - low)


def _time_steps(
    algorithm: Algorithm1, shape: StepShape, device: str, seconds: float
) -> list[tuple[Took, ...]]:
    """Return times of steps of this shape: of the whole step, and of its phases.

    Phases are timed in a second run, because each timer waits for the device.
    """
    batch, t = synthetic_batch(algorithm, shape)
    decisions, found = batch.decisions, list[tuple[Took, ...]]()
    algorithm.step(batch, t)
    since = Clock(device)
    while len(found) < MIN_REPEATS or (len(found) < MAX_REPEATS and since.took().wall < seconds):
        batch.decisions = decisions
        clock = Clock(device)
        algorithm.step(batch, t)
        whole = clock.took()
        batch.decisions = decisions
        clock = Clock(device)
        algorithm.refresh(batch, t - 1, shape.users)
        refreshed = clock.took()
        _, v = algorithm.update_recommender(batch, t, shape.users)
        updated = clock.took()
        if shape.queued:
            algorithm.update_policy(batch, v)
        found.append((whole, refreshed, updated.less(refreshed), clock.took().less(updated)))
    return found


def train_epoch(setting: Setting, faster: float) -> dict[str, Any]:
    """Train one epoch by Algorithm 1 and validate the result as the library does."""
    config = setting.config
    quick = config.but(**{name: config[name] * faster for name in RATES})
    setting = Setting(setting.parts, quick)
    algorithm, model, network = _make(setting)
    run = Run.begin(setting)
    clock = Clock(run.device)
    loss = algorithm.epoch(setting.train, config.training.seed)
    took = clock.took()
    model.load_state_dict(algorithm.theta.state_dict())
    network.load_state_dict(algorithm.phi.state_dict())
    models = StackedRecommenders.of([model], run.device), StackedPolicies.of([network], run.device)
    _, validation = TrainingRollouts([run.job], run.columns).traces(1, models, models)
    (valid,) = run.validate(models[0], validation)
    return {"reached": True, "took": took._asdict(), "epochs": 1, "valid": valid, "loss": loss}
