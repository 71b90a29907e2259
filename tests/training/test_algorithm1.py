"""Stretch 1 is Algorithm 1 of the paper: against a literal one, dense in items, one user at a time.

Sketches are rows of z as wide as the catalogue, the queue holds stale intermediate sketches, and
all the rest is automatic differentiation and torch's own optimizers. As in all of dips, x_{t+1} is
predicted from S_t (Eq. 1 and 2; the printed algorithm adapts one step late). The grid on which the
library's networks round is switched off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dips.data.interactions import Interactions, from_arrays
from dips.numerics import fixed_point
from dips.training.trainer import TrainingState, fit

ITEMS, LENGTHS = 13, [11, 6, 9, 3, 1, 8]
RATES = {"learning_rate": 2**-6, "user_lr": 2**-4, "policy_lr": 2**-5}  # exact in float32
DECAY = {"weight_decay": 2**-7, "policy_weight_decay": 2**-6}
STEPS, ALPHA, SIZE = 3, 0.125, 2


def _distinct() -> Interactions:
    """Nobody meets an item twice: then a row of z says everything about a sketch."""
    rng = np.random.default_rng(4)
    item = np.concatenate([rng.permutation(ITEMS)[:length] for length in LENGTHS])
    item[0], item[1:11] = ITEMS - 1, rng.permutation(ITEMS - 1)[:10]
    user = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    total = sum(LENGTHS)
    rating = rng.integers(1, 6, total).astype(np.float32)
    return from_arrays(user, item, rating, np.arange(total), about={"name": "distinct"})


class Literal:
    """The algorithm, line by line."""

    def __init__(self, fit_state: TrainingState, data: Interactions, queue: int) -> None:
        self.theta = self._leaves(fit_state.stack.state, fit_state.stack.trainable)
        self.offset = fit_state.stack.state["offset"][0]
        assert fit_state.policies is not None
        self.phi = self._leaves(fit_state.policies.state, fit_state.policies.trainable)
        self.length = queue
        self.stories = [
            (data.item[data.events(user)].tolist(), data.rating[data.events(user)].tolist())  # type: ignore[index]
            for user in range(data.users)
        ]
        free = [self.theta[name] for name in ("bias", "user_bias_scale")]
        rate, decay = RATES["learning_rate"], DECAY["weight_decay"]
        self.optimizers = [
            torch.optim.SGD(
                [self.theta["user_prior"]], RATES["user_lr"], momentum=0.9, weight_decay=decay
            ),
            torch.optim.Adam([self.theta["vectors"]], rate, weight_decay=decay),
            torch.optim.Adam(free, rate),
        ]
        self.source_policy = torch.optim.Adam(
            self.phi.values(), RATES["policy_lr"], weight_decay=DECAY["policy_weight_decay"]
        )

    @staticmethod
    def _leaves(state: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
        return {name: state[name][0].clone().requires_grad_() for name in names}

    def epoch(self) -> None:
        """One pass over one batch of all users."""
        z = torch.zeros(len(LENGTHS), ITEMS).double()
        ratings = torch.zeros(len(LENGTHS), ITEMS).double()
        queues: list[list[Tensor]] = [[] for _ in LENGTHS]
        for t in range(max(LENGTHS)):
            there = [user for user, length in enumerate(LENGTHS) if t < length]
            for user in there if t else []:
                self._reveal(user, t - 1, z, ratings, queues[user])
            loss = torch.stack([self._loss(user, t, z[user], ratings[user]) for user in there])
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss.mean().backward()
            for optimizer in self.optimizers:
                optimizer.step()
            if t > SIZE:
                self.source_policy.zero_grad()
                terms = [self._credit(user, t, z, ratings, queues[user]) for user in there]
                torch.stack(terms).mean().backward()
                self.source_policy.step()

    def _reveal(self, user: int, t: int, z: Tensor, ratings: Tensor, queue: list[Tensor]) -> None:
        """The intermediate sketch, and what is left of it."""
        item, rating = (column[t] for column in self.stories[user])
        ratings[user, item] = rating
        z[user, item] = 1.0
        if t < SIZE:
            return
        queue.append(z[user].clone())
        del queue[: -self.length]
        score = self._score(z[user], ratings[user]).detach()
        z[user, int(torch.where(z[user] > 0, score, torch.inf).argmin())] = 0.0

    def _score(self, z: Tensor, ratings: Tensor) -> Tensor:
        """[items] the network of the paper: how much to keep each item."""
        phi, shown = self.phi, (z * ratings)[None]
        first = (shown @ phi["input_weight"] + phi["input_bias"]).relu()
        second = (first @ phi["hidden.weight"].T + phi["hidden.bias"]).relu()
        return (second @ phi["output_weight"].T)[0] + phi["output_bias"][:, 0]

    def _loss(self, user: int, t: int, z: Tensor, ratings: Tensor) -> Tensor:
        """Adapt to the sketch, and predict what comes next."""
        vectors = torch.cat([self.theta["vectors"], self.theta["user_bias_scale"].expand(ITEMS, 1)], 1)
        bias = self.theta["bias"][:, 0] + self.offset
        theta = self.theta["user_prior"]
        for _ in range(STEPS):
            inner = (z * (bias + vectors @ theta - ratings) ** 2).sum()
            theta = theta - ALPHA * torch.autograd.grad(inner, theta, create_graph=True)[0]
        item, rating = (column[t] for column in self.stories[user])
        return (bias[item] + vectors[item] @ theta - rating) ** 2

    def _credit(self, user: int, t: int, z: Tensor, ratings: Tensor, queue: list[Tensor]) -> Tensor:
        """The effect of z on the loss times all of the queue's choices under the present policy."""
        weight = z[user].clone().requires_grad_()
        (effect,) = torch.autograd.grad(self._loss(user, t, weight, ratings[user]), weight)
        kept = torch.zeros(ITEMS).double()
        for before in queue:
            powers = before * (-self._score(before, ratings[user])).exp()
            kept = kept + before - powers / powers.sum()
        return effect @ kept


@pytest.mark.parametrize("queue", [100, 3, 1])
def test_stretch_one_is_algorithm_one(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, queue: int
) -> None:
    monkeypatch.setattr(fixed_point, "quantize_straight_through", lambda value, bits, limit: value.double())
    world = lab(data=_distinct(), double=True)
    job = world.job(
        policy="dips", size=SIZE, update_interval=1, queue=queue, credit="identity", dropout=0.0, epochs=2,
        inner_steps=STEPS, inner_lr=ALPHA, lr_schedule="constant", policy_warmup_epochs=0, policy_freeze_epochs=0,
        **RATES, **DECAY,
    )  # fmt: skip
    job = replace(job, train=world.data, valid=world.data)
    fit_state = world.start([job])
    before = {name: value.clone() for name, value in fit_state.parameters().items()}
    literal = Literal(fit_state, world.data, queue)
    for _ in range(2):
        literal.epoch()
    fit(fit_state, [job], world.columns, world.validate)
    for prefix, expected in (("recommender.", literal.theta), ("policy.", literal.phi)):
        for name, value in expected.items():
            mine = fit_state.parameters()[prefix + name]
            torch.testing.assert_close(mine[0], value.detach(), atol=1e-9, rtol=1e-9)
            assert float((mine - before[prefix + name]).abs().max()) > 1e-2
