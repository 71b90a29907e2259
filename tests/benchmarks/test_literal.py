"""The literal algorithm of the benchmarks computes what the product computes at stretch 1.

In float64, without dropout, the grid of decisions switched off. The literal one takes the gradient
in z from the same pass as the recommender's, before that moves; the product takes it afterwards. So
one of the two stands still while the other is followed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.literal import Literal, Shape, shapes, staged
from dips.data.interactions import Interactions, from_arrays
from dips.numerics import exact
from dips.policy.network import PaperNetwork
from dips.policy.registry import build_policy
from dips.recommender.dot import DotProduct
from dips.recommender.registry import make_recommender
from dips.stream.users import Columns
from dips.studies.checks import describe, describe_policy
from dips.testing import random_world
from dips.training.batches import Stretch
from dips.training.config import TrainConfig
from dips.training.policy_gradients import policy_gradients
from dips.training.recipes import build_config
from dips.training.rollouts import Job, TrainingRollouts
from dips.training.trainer import TrainingState, fit, start

LENGTHS = [11, 6, 9, 3, 1, 8]
FAST: dict[str, Any] = {"learning_rate": 2**-6, "user_lr": 2**-4, "weight_decay": 2**-7}
BRISK: dict[str, Any] = {"policy_lr": 2**-5, "policy_weight_decay": 2**-6}
STILL: dict[str, Any] = {"learning_rate": 0.0, "user_lr": 1e-30, "weight_decay": 0.0}


class Pair:
    """The product and the literal algorithm at one start."""

    def __init__(self, data: Interactions, **settings: Any) -> None:
        flags = {
            "policy": "dips", "size": 2, "dim": 3, "inner_steps": 3, "inner_lr": 0.125,
            "dropout": 0.0, "queue": 3, "epochs": 2, "device": "cpu", **settings,
        }  # fmt: skip
        self.data = data
        self.config = build_config("paper", None, flags, implicit_data=not data.explicit)
        model, network = self.modules(data, self.config)
        self.job = Job(data, data, self.config)
        self.fitting: TrainingState = start([self.job], [model], "cpu", [network])
        columns = Columns.of(data)
        self.columns = replace(columns, rating=columns.rating.double())
        self.literal = Literal(model, network, self.config)

    @staticmethod
    def modules(data: Interactions, config: TrainConfig) -> tuple[DotProduct, PaperNetwork]:
        model = make_recommender(describe(data, config), config.seed).double()
        network = build_policy(describe_policy(data, config), config.seed)
        assert isinstance(model, DotProduct)
        assert isinstance(network, PaperNetwork)
        network.double()
        draw = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for value in (*model.parameters(), *network.parameters()):
                value += torch.randn(value.shape, generator=draw).double() * 0.2
        return model, network

    def both(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters of the product, and of the literal algorithm, as they are now."""
        model, network = self.modules(self.data, self.config)
        self.literal.give_back(model, network)
        theirs = {f"recommender.{n}": value for n, value in model.named_parameters()}
        theirs |= {f"policy.{n}": value for n, value in network.named_parameters()}
        theirs = {name: value.detach() for name, value in theirs.items()}
        ours = {name: value[0] for name, value in self.fitting.parameters().items()}
        return {name: ours[name] for name in theirs}, theirs


def world(explicit: bool) -> Interactions:
    """Ratings of different items; or visits with many repeats."""
    if not explicit:
        return random_world(LENGTHS, items=7, seed=2, explicit=False)
    rng = np.random.default_rng(4)
    item = np.concatenate([rng.permutation(13)[:length] for length in LENGTHS])
    item[0], item[1:11] = 12, rng.permutation(12)[:10]
    user = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    rating = rng.integers(1, 6, len(item)).astype(np.float32)
    return from_arrays(user, item, rating, np.arange(len(item)), about={"name": "distinct"})


@pytest.fixture(autouse=True)
def _no_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "rounded", lambda value, bits, limit: value.double())


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("rates", [{**FAST, "policy_lr": 0.0}, {**STILL, **BRISK}])
def test_two_epochs_lead_to_the_same_parameters(explicit: bool, rates: dict[str, Any]) -> None:
    pair = Pair(world(explicit), **rates)
    before, start_ = pair.both()
    for name, value in before.items():
        torch.testing.assert_close(value, start_[name])
    for epoch in range(2):
        pair.literal.epoch(pair.data, seed=epoch)
    fit(pair.fitting, [pair.job], pair.columns, lambda stack, trace: [0.0])
    ours, theirs = pair.both()
    moving = "recommender." if rates["learning_rate"] else "policy."
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-9, rtol=1e-9)
        if name.startswith(moving):
            assert float((value - start_[name]).abs().max()) > 1e-3, name


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("queue", [100, 3, 1])
def test_sketches_and_gradients_agree(explicit: bool, queue: int) -> None:
    pair = Pair(
        world(explicit), **{**STILL, "policy_lr": 0.0, "policy_weight_decay": 0.0}, queue=queue
    )
    pair.fitting.progress.epoch = 1
    walks, seen = TrainingRollouts([pair.job], pair.columns), 0
    user_batch = pair.literal.user_batch(pair.data, np.arange(pair.data.users))
    assert pair.fitting.policies is not None
    for block in walks.blocks(1, pair.fitting.stack, pair.fitting.policies):
        assert isinstance(block, Stretch)
        t = block.span.start
        pair.literal.step(user_batch, t)
        users = user_batch.active(t)
        evidence = block.trace.evidence((block.base + t)[block.length > t])
        sketch = torch.zeros(users, pair.data.items).double()
        sketch.scatter_add_(1, evidence.item, evidence.weight.double())
        torch.testing.assert_close(user_batch.z[:users], sketch)
        policy_batches = block.policy_batches(walks.clock, [pair.config.seed], 1, pair.config)
        assert len(policy_batches) == (1 if t > pair.config.size else 0)
        for policy_batch in policy_batches:
            found = policy_gradients(
                pair.fitting.stack, pair.fitting.policies, block.trace, walks.clock, policy_batch,
                pair.config,
            )  # fmt: skip
            phi = pair.literal.phi
            assert phi.enter.weight.grad is not None
            assert phi.leave.weight.grad is not None
            torch.testing.assert_close(found["enter"][0], phi.enter.weight.grad.T)
            torch.testing.assert_close(found["middle.weight"][0], phi.middle.weight.grad)
            torch.testing.assert_close(found["leave"][0], -phi.leave.weight.grad)
            assert float(found["leave"].abs().max()) > 1e-6
            seen += 1
    assert seen == max(LENGTHS) - 1 - pair.config.size


def test_the_shapes_are_those_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(world(True), users=4)
    found: list[Shape] = []
    step = Literal.step

    def noted(self: Literal, user_batch: Any, t: int) -> Tensor:
        loss = step(self, user_batch, t)
        found.append(Shape(user_batch.active(t), user_batch.queued))
        return loss

    monkeypatch.setattr(Literal, "step", noted)
    pair.literal.epoch(pair.data, seed=0)
    order = np.random.default_rng(0).permutation(pair.data.users)
    lengths = pair.data.lengths[order]
    parts = [lengths[:4].tolist(), lengths[4:].tolist()]
    assert found == [shape for part in parts for shape in shapes(part, 2, 3)]


@pytest.mark.parametrize("shape", [Shape(5, 0), Shape(4, 1), Shape(3, 2), Shape(1, 3)])
def test_a_staged_company_stands_before_a_step_of_its_shape(shape: Shape) -> None:
    pair = Pair(world(True))
    user_batch, t = staged(pair.literal, shape)
    pair.literal.step(user_batch, t)
    assert Shape(user_batch.active(t), user_batch.queued) == shape
