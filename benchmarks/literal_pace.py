"""How long the literal algorithm takes, without waiting for it. Runs in a child of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.literal import Literal, Shape, shapes, staged
from benchmarks.measure import Clock, Peak, Took
from benchmarks.product import Run, Setting
from dips.policy.network import PaperNetwork
from dips.policy.registry import build_policy
from dips.policy.stacked import StackedPolicies
from dips.recommender.dot import DotProduct
from dips.recommender.registry import make_recommender
from dips.recommender.stacked import StackedRecommenders
from dips.studies.checks import describe, describe_policy, device_of
from dips.training.rollouts import TrainingRollouts

GROUPS = 8
"""Kinds of time steps that are timed."""
MOST, LEAST = 50, 2
"""Timed steps of a kind; the least even where they take longer than they should."""
PIECES = ("rollout", "recommender", "policy")
"""Of a step; the credit comes with the recommender's gradient."""
RATES = ("learning_rate", "user_lr", "policy_lr")


def _literal(setting: Setting) -> tuple[Literal, DotProduct, PaperNetwork]:
    """The literal algorithm at the product's start, and the modules that it comes from."""
    config, device = setting.config, device_of(setting.config)
    model = make_recommender(describe(setting.train, config), config.seed).to(device)
    network = build_policy(describe_policy(setting.train, config), config.seed)
    assert isinstance(model, DotProduct)
    assert isinstance(network, PaperNetwork)
    return Literal(model, network.to(device), config), model, network


def literal_steps(setting: Setting, seconds: float) -> dict[str, Any]:
    """Time some steps of the literal algorithm, and add up what an epoch's would take.

    What a step costs depends on how many users are still there and how full their queue is. All
    steps of an epoch are sorted by the product of the two and cut into groups of the same work; a
    step of the mean work stands for each group (median of some), times the steps in the group.
    """
    config, device = setting.config, device_of(setting.config)
    order = np.random.default_rng(config.seed).permutation(setting.train.users)
    lengths = setting.train.lengths[order]
    found = [
        shape
        for low in range(0, len(lengths), config.users)
        for shape in shapes(lengths[low : low + config.users].tolist(), config.size, config.queue)
    ]
    peak = Peak(device)
    literal, _, _ = _literal(setting)
    user_batch, t = staged(literal, max(found, key=lambda shape: shape.work))
    literal.step(user_batch, t)  # warms up, and takes the most memory
    del user_batch
    total, timed = np.zeros((1 + len(PIECES), 2)), 0
    clock, groups = Clock(device), list(grouped(found, GROUPS))
    for place, (shape, steps) in enumerate(groups):
        left = seconds - clock.took().wall
        took = _time_steps(literal, shape, device, left / (len(groups) - place))
        timed += len(took)
        total += steps * np.median(took, axis=0)
    whole, *pieces = (Took(*row)._asdict() for row in total.tolist())
    return {
        "interactions": len(setting.train),
        "epoch": whole,
        "peak_bytes": peak.bytes(),
        "users": config.users,
        "stretch": 1,
        "steps_per_epoch": len(found),
        "steps_timed": timed,
        "phases": dict(zip(PIECES, pieces, strict=True)),
    }


def grouped(found: Sequence[Shape], count: int) -> Iterator[tuple[Shape, int]]:
    """Steps in groups of about the same work: one of the mean work of each, and how many."""
    ordered = sorted(found, key=lambda shape: shape.work)
    work = np.array([shape.work for shape in ordered])
    edges = np.searchsorted(work.cumsum(), np.linspace(0, work.sum(), count + 1)[1:-1])
    for low, high in zip([0, *edges], [*edges, len(ordered)], strict=True):
        if high > low:
            near = int(np.abs(work[low:high] - work[low:high].mean()).argmin())
            yield ordered[low + near], int(high - low)


def _time_steps(
    literal: Literal, shape: Shape, device: str, seconds: float
) -> list[tuple[Took, ...]]:
    """Steps of this shape as often as there is time for: as a whole, and piece by piece.

    The pieces apart, so that waiting for each of them does not slow down the whole.
    """
    user_batch, t = staged(literal, shape)
    decided, found = user_batch.decided, list[tuple[Took, ...]]()
    literal.step(user_batch, t)
    since = Clock(device)
    while len(found) < LEAST or (len(found) < MOST and since.took().wall < seconds):
        user_batch.decided = decided
        clock = Clock(device)
        literal.step(user_batch, t)
        whole = clock.took()
        user_batch.decided = decided
        clock = Clock(device)
        literal.refresh(user_batch, t - 1, shape.users)
        walked = clock.took()
        _, effect = literal.learn(user_batch, t, shape.users)
        learned = clock.took()
        if shape.queued:
            literal.teach(user_batch, effect)
        found.append((whole, walked, learned.less(walked), clock.took().less(learned)))
    return found


def literal_epoch(setting: Setting, faster: float) -> dict[str, Any]:
    """Train the literal algorithm for one epoch, and validate it as the product is validated."""
    config = setting.config
    quick = config.but(**{name: getattr(config, name) * faster for name in RATES})
    setting = Setting(setting.parts, quick)
    literal, model, network = _literal(setting)
    run = Run.begin(setting)
    clock = Clock(run.device)
    loss = literal.epoch(setting.train, config.seed)
    took = clock.took()
    literal.give_back(model, network)
    players = StackedRecommenders.of([model], run.device), StackedPolicies.of([network], run.device)
    _, validation = TrainingRollouts([run.job], run.columns).sketches(1, players, players)
    (valid,) = run.validate(players[0], validation)
    return {"reached": True, "took": took._asdict(), "epochs": 1, "valid": valid, "loss": loss}
