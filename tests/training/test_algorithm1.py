"""Training with `update_interval = 1` computes what Algorithm 1 of the paper computes.

Everything is in float64, without dropout and without the fixed-point grid of decisions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dips.data.interactions import Interactions, from_arrays
from dips.numerics import fixed_point
from dips.policy.paper_network import PaperNetwork
from dips.policy.registry import build_policy
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.registry import make_recommender
from dips.stream.users import EventColumns
from dips.studies.checks import policy_spec, recommender_spec, resolved
from dips.testing import random_world
from dips.training.algorithm1 import Algorithm1
from dips.training.batches import IntervalBlock
from dips.training.config import TrainConfig
from dips.training.policy_gradients import policy_gradients
from dips.training.recipes import build_config
from dips.training.rollouts import Job, TrainingRollouts
from dips.training.trainer import TrainingState, fit, start

LOSSES = ["mse", "softmax", "linearised"]
"""Of predictions; `linearised` is the inner loss of a softmax."""
LENGTHS = [11, 6, 9, 3, 1, 8]
THETA: dict[str, Any] = {"learning_rate": 2**-6, "user_lr": 2**-4, "weight_decay": 2**-7}
PHI: dict[str, Any] = {"policy_lr": 2**-5, "policy_weight_decay": 2**-6}
CONSTANT_THETA: dict[str, Any] = {"learning_rate": 0.0, "user_lr": 1e-30, "weight_decay": 0.0}
CONSTANT_PHI: dict[str, Any] = {"policy_lr": 0.0, "policy_weight_decay": 0.0}


def _world(explicit: bool) -> Interactions:
    """Return ratings of distinct items, or implicit interactions with many repeats."""
    if not explicit:
        return random_world(LENGTHS, items=7, seed=2, explicit=False)
    rng = np.random.default_rng(4)
    item = np.concatenate([rng.permutation(13)[:length] for length in LENGTHS])
    item[0], item[1:11] = 12, rng.permutation(12)[:10]
    user = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    rating = rng.integers(1, 6, len(item)).astype(np.float32)
    return from_arrays(user, item, rating, np.arange(len(item)), about={"name": "distinct"})


class Pair:
    """The trainer and Algorithm 1 with the same initial parameters."""

    def __init__(self, loss: str, reuse_backward: bool = True, **settings: Any) -> None:
        self.data = data = _world(loss == "mse")
        flags = {
            "policy": "dips", "size": 2, "dim": 3, "inner_steps": 3, "inner_lr": 0.125,
            "dropout": 0.0, "queue": 3, "epochs": 2, "device": "cpu", **settings,
        }  # fmt: skip
        if loss == "linearised":
            flags["inner_loss"] = loss
        self.config: TrainConfig = resolved(data, build_config("paper", None, flags))
        model = make_recommender(recommender_spec(data, self.config), 0).double()
        network = build_policy(policy_spec(data, self.config), 0)
        assert isinstance(model, LinearisedDotProduct if loss == "linearised" else DotProduct)
        assert isinstance(network, PaperNetwork)
        network.double()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for value in (*model.parameters(), *network.parameters()):
                value += torch.randn(value.shape, generator=generator).double() * 0.2
        self.job = Job(data, data, self.config)
        self.state: TrainingState = start([self.job], [model], "cpu", [network])
        columns = EventColumns.of(data)
        self.columns = replace(columns, rating=columns.rating.double())
        self.algorithm = Algorithm1(model, network, self.config, reuse_backward=reuse_backward)

    def parameters(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the current parameters of the trainer, and those of Algorithm 1."""
        theta, phi = self.algorithm.theta, self.algorithm.phi
        reference = {f"recommender.{n}": value for n, value in theta.named_parameters()}
        reference |= {f"policy.{n}": value for n, value in phi.named_parameters()}
        reference = {name: value.detach().clone() for name, value in reference.items()}
        trained = {name: value[0].clone() for name, value in self.state.parameters().items()}
        return {name: trained[name] for name in reference}, reference

    def train_both(self) -> None:
        """Train two epochs."""
        for epoch in range(2):
            self.algorithm.epoch(self.data, seed=epoch)
        fit(self.state, [self.job], self.columns, lambda stack, trace: [0.0])


@pytest.fixture(autouse=True)
def _no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fixed_point, "quantize_straight_through", lambda value, bits, limit: value.double()
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("queue", [100, 3, 1])
def test_update_interval_1_is_algorithm_1(loss: str, queue: int) -> None:
    """Both are trained; entry gradients are taken after the update of Theta."""
    pair = Pair(loss, reuse_backward=False, queue=queue, **THETA, **PHI)
    before, initial = pair.parameters()
    for name, value in before.items():
        torch.testing.assert_close(value, initial[name])
    pair.train_both()
    trained, reference = pair.parameters()
    for name, value in trained.items():
        torch.testing.assert_close(value, reference[name], atol=1e-9, rtol=1e-9)
        assert float((value - initial[name]).abs().max()) > 1e-3, name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rates", [{**THETA, **CONSTANT_PHI}, {**CONSTANT_THETA, **PHI}])
def test_one_backward_pass_for_both_updates(loss: str, rates: dict[str, Any]) -> None:
    """Its entry gradients are older by one update of Theta, so one of the two stays constant."""
    pair = Pair(loss, **rates)
    _, initial = pair.parameters()
    pair.train_both()
    trained, reference = pair.parameters()
    moving = "recommender." if rates["learning_rate"] else "policy."
    for name, value in trained.items():
        torch.testing.assert_close(value, reference[name], atol=1e-9, rtol=1e-9)
        if name.startswith(moving):
            assert float((value - initial[name]).abs().max()) > 1e-3, name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("queue", [100, 3, 1])
def test_sketches_and_policy_gradients_agree(loss: str, queue: int) -> None:
    pair = Pair(loss, queue=queue, **CONSTANT_THETA, **CONSTANT_PHI)
    pair.state.progress.epoch = 1
    rollouts, compared = TrainingRollouts([pair.job], pair.columns), 0
    batch = pair.algorithm.user_batch(pair.data, np.arange(pair.data.users))
    assert pair.state.policies is not None
    for block in rollouts.blocks(1, pair.state.stack, pair.state.policies):
        assert isinstance(block, IntervalBlock)
        t = block.span.start
        pair.algorithm.step(batch, t)
        users = batch.active(t)
        evidence = block.trace.evidence((block.base + t)[block.length > t])
        sketch = torch.zeros(users, pair.data.items).double()
        sketch.scatter_add_(1, evidence.item, evidence.weight.double())
        torch.testing.assert_close(batch.z[:users], sketch)
        table = rollouts.refresh_table
        policy_batches = block.policy_batches(table, [pair.config.training.seed], 1, pair.config)
        assert len(policy_batches) == (1 if t > pair.config.sketch.size else 0)
        for policy_batch in policy_batches:
            found = policy_gradients(
                pair.state.stack, pair.state.policies, block.trace, table, policy_batch, pair.config
            )
            for name, value in pair.algorithm.phi.named_parameters():
                assert value.grad is not None
                torch.testing.assert_close(found[name][0], value.grad)
            assert float(found["output_weight"].abs().max()) > 1e-6
            compared += 1
    assert compared == max(LENGTHS) - 1 - pair.config.sketch.size


@pytest.mark.parametrize("loss", LOSSES)
def test_the_inner_loop_descends_on_equation_8(loss: str) -> None:
    """Its written-out gradients equal automatic differentiation of the weighted loss."""
    algorithm = Pair(loss).algorithm
    settings, items = algorithm.config.model, algorithm.items
    z = torch.zeros(3, items).double()
    z[0, :2], z[1, 2:5] = 1.0, 1.0
    y = torch.randint(1, 6, z.shape, generator=torch.Generator().manual_seed(5)).double()
    table, intercept = algorithm.features()
    user = algorithm.theta.user_prior.expand(3, -1)
    for _ in range(settings.inner_steps):
        scores = user @ table.T + intercept
        losses = (scores - y) ** 2 if loss == "mse" else -scores.log_softmax(1)
        if loss == "linearised":
            every = torch.arange(items).expand(3, -1)
            losses = algorithm.theta.inner_loss(user, every, y)
        (gradient,) = torch.autograd.grad((z * losses).sum(), user, retain_graph=True)
        user = (user - settings.inner_lr * gradient).detach().requires_grad_()
    found = algorithm.adapt(z, y, table, intercept)
    torch.testing.assert_close(found, user, atol=1e-12, rtol=1e-12)
    assert float((user - algorithm.theta.user_prior).detach().abs().max()) > 1e-2


@pytest.mark.parametrize("loss", LOSSES)
def test_the_policy_update_is_equation_10(loss: str) -> None:
    """The gradient is that of v' sum_j z_j, with v fixed and z_j = z_hat_j - sigma(f) by Eq. 4."""
    pair = Pair(loss, **CONSTANT_THETA, **CONSTANT_PHI)
    algorithm = pair.algorithm
    batch = algorithm.user_batch(pair.data, np.arange(pair.data.users))
    for t in range(6):
        algorithm.step(batch, t)
    users = batch.active(6)
    v = torch.randn(users, algorithm.items, generator=torch.Generator().manual_seed(1)).double()
    algorithm.update_policy(batch, v)
    found = [value.grad.clone() for value in algorithm.phi.parameters() if value.grad is not None]
    total = torch.zeros(()).double()
    for user in range(users):
        for z_hat in batch.queue[user, : batch.queued]:
            scores = algorithm.removal_scores(z_hat, batch.y[user], dropout=False)
            powers = z_hat * scores.exp()
            total = total + v[user] @ (z_hat - powers / powers.sum())
    expected = torch.autograd.grad(total, list(algorithm.phi.parameters()))
    for mine, value in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, value, atol=1e-12, rtol=1e-9)
