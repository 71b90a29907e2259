"""Algorithm 1 of the paper, taken literally and written well: dense in items, a step at a time.

Everything is as wide as the catalogue: the sketch z and the ratings of a user, the policy network
(M-128-128-M), the inner loss, and each of the Q intermediate sketches in the queue. Users walk in
lockstep, 256 at a time, and after every time step recommender and policy each take a step of their
optimizers. It starts from the modules of the product and takes its settings, so that both compute
the same (tests/benchmarks/test_literal.py).

What a good researcher would do is done: no loop over users or items, those who have ended are cut
off, the gradient of the inner loss is written out (autograd then differentiates once, not twice),
one backward pass gives the gradients in the recommender and in z, optimizers are fused, nothing
waits for the device. As in all of dips, x_{t+1} is predicted from S_t (Eq. 1 and 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dips.data.interactions import Interactions
from dips.policy.network import PaperNetwork
from dips.recommender.base import COMFORTABLE
from dips.recommender.dot import DotProduct
from dips.training.config import TrainConfig

MOMENTUM = 0.9


class Recommender(nn.Module):
    """Scores of all items: bias + item . user, the user's own bias included for ratings."""

    offset: Tensor

    def __init__(self, model: DotProduct, steps: int, rate: float) -> None:
        super().__init__()
        self.steps, self.rate, self.listwise = steps, rate, model.loss.listwise
        self.vectors = nn.Parameter(model.vectors.detach().clone())
        self.bias = nn.Parameter(model.bias.detach()[:, 0].clone())
        self.user_prior = nn.Parameter(model.user_prior.detach().clone())
        if not self.listwise:
            self.loading = nn.Parameter(model.loading.detach().clone())
        self.register_buffer("offset", model.offset.clone())

    def losses(self, z: Tensor, ratings: Tensor, item: Tensor, rating: Tensor) -> Tensor:
        """[users] losses of what comes next, predicted from sketches z [users, items]."""
        table, intercept = self._table(), self.bias + self.offset
        user = self._adapt(z, ratings, table, intercept)
        if self.listwise:
            return functional.cross_entropy(user @ table.T + intercept, item, reduction="none")
        score = (table[item] * user).sum(1) + intercept[item]
        return (score - rating) ** 2

    def _table(self) -> Tensor:
        """[items, dim] what multiplies a user's vector."""
        if self.listwise:
            return self.vectors
        return torch.cat([self.vectors, self.loading.expand(len(self.vectors), 1)], 1)

    def _adapt(self, z: Tensor, ratings: Tensor, table: Tensor, intercept: Tensor) -> Tensor:
        """[users, dim] gradient descent on the losses of all items, weighted by z (Eq. 7)."""
        total = z.sum(1, keepdim=True)
        rate = self.rate * COMFORTABLE / total.detach().clamp_min(COMFORTABLE)
        user = self.user_prior.expand(len(z), -1)
        if self.listwise:
            pulled = z @ table
            for _ in range(self.steps):
                chances = (user @ table.T + intercept).softmax(1)
                user = user - rate * (total * (chances @ table) - pulled)
            return user
        wanted = ratings - intercept
        for _ in range(self.steps):
            user = user - 2 * rate * ((z * (user @ table.T - wanted)) @ table)
        return user


class Policy(nn.Module):
    """The paper's network: from the ratings of a sketch to how much each item should go."""

    def __init__(self, network: PaperNetwork) -> None:
        super().__init__()
        items, hidden = network.enter.shape
        self.dropout = network.dropout
        self.enter, self.leave = nn.Linear(items, hidden), nn.Linear(hidden, items)
        self.middle = nn.Linear(hidden, hidden)
        self.to(network.enter.device, network.enter.dtype)
        with torch.no_grad():
            self.enter.weight.copy_(network.enter.T)
            self.enter.bias.copy_(network.enter_bias)
            self.middle.weight.copy_(network.middle.weight)
            self.middle.bias.copy_(network.middle.bias)
            self.leave.weight.copy_(-network.leave)  # the product's scores say what to keep
            self.leave.bias.copy_(-network.leave_bias[:, 0])

    def forward(self, before: Tensor, ratings: Tensor) -> Tensor:
        """[..., items] removal scores of intermediate sketches."""
        first = self._thinned(self.enter(before * ratings).relu())
        scores: Tensor = self.leave(self._thinned(self.middle(first).relu()))
        return scores

    def chances(self, before: Tensor, ratings: Tensor) -> Tensor:
        """[..., items] which item goes: a softmax over what is in the sketch."""
        scores: Tensor = self(before, ratings)
        return (scores + before.log()).softmax(-1)

    def _thinned(self, units: Tensor) -> Tensor:
        return functional.dropout(units, self.dropout, self.training)


class UserBatch:
    """Users in lockstep, the longest histories first, with everything they carry along."""

    def __init__(
        self, item: Tensor, rating: Tensor, length: Sequence[int], items: int, queue: int
    ) -> None:
        self.item, self.rating = item, rating  # [users, steps]
        self.length = np.asarray(length)  # descending
        users = len(item)
        self.z: Tensor = rating.new_zeros(users, items)
        self.ratings = torch.zeros_like(self.z)
        self.queue = rating.new_zeros(users, queue, items)
        self.decided = 0

    @property
    def queued(self) -> int:
        """How many intermediate sketches are in the queue."""
        return min(self.decided, self.queue.shape[1])

    def active(self, t: int) -> int:
        """How many have an interaction t: they are the first."""
        return int((self.length > t).sum())

    def reveal(self, t: int, users: int) -> Tensor:
        """The intermediate sketches [users, items] with interaction t."""
        place, rating = self.item[:users, t, None], self.rating[:users, t, None]
        self.ratings[:users].scatter_(1, place, rating)
        before = self.z[:users]
        before.scatter_add_(1, place, torch.ones_like(rating))
        return before

    def remember(self, before: Tensor) -> None:
        """Append intermediate sketches to the queue, in the place of the oldest."""
        self.queue[: len(before), self.decided % self.queue.shape[1]] = before
        self.decided += 1


class Literal:
    """The algorithm, line by line."""

    def __init__(self, model: DotProduct, network: PaperNetwork, config: TrainConfig) -> None:
        self.config = config
        self.theta = Recommender(model, config.inner_steps, config.inner_lr)
        self.phi = Policy(network)
        rate, decay = config.learning_rate, config.weight_decay
        free = [self.theta.bias] + ([] if self.theta.listwise else [self.theta.loading])
        groups = [
            {"params": [self.theta.vectors], "weight_decay": decay},
            {"params": free, "weight_decay": 0.0},
        ]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(groups, rate, fused=True),
            torch.optim.SGD(
                [self.theta.user_prior], config.user_lr, MOMENTUM, weight_decay=decay, fused=True
            ),
        ]
        self.source_policy = torch.optim.Adam(
            self.phi.parameters(),
            config.policy_lr,
            weight_decay=config.policy_weight_decay,
            fused=True,
        )
        self.items = len(self.theta.vectors)

    def epoch(self, data: Interactions, seed: int) -> float:
        """One pass over all users of the data; the mean loss."""
        order = np.random.default_rng(seed).permutation(data.users)
        total = torch.zeros((), dtype=torch.float64, device=self.theta.bias.device)
        for low in range(0, len(order), self.config.users):
            user_batch = self.user_batch(data, order[low : low + self.config.users])
            for t in range(int(user_batch.length[0])):
                total += self.step(user_batch, t) * user_batch.active(t)
        return float(total) / len(data)

    def user_batch(self, data: Interactions, users: npt.NDArray[np.int64]) -> UserBatch:
        """These users before their first step."""
        length = data.lengths[users]
        users = users[np.argsort(-length, kind="stable")]
        length = data.lengths[users]
        event = data.starts[users, None] + np.minimum(np.arange(length[0]), length[:, None] - 1)
        like = self.theta.bias
        rating = np.ones(event.shape) if data.rating is None else data.rating[event]
        return UserBatch(
            torch.as_tensor(data.item[event].astype(np.int64), device=like.device),
            torch.as_tensor(rating, dtype=like.dtype, device=like.device),
            length.tolist(),
            self.items,
            self.config.queue,
        )

    def step(self, user_batch: UserBatch, t: int) -> Tensor:
        """One time step of everybody who is still there; the mean loss."""
        users = user_batch.active(t)
        if t > 0:
            self.refresh(user_batch, t - 1, users)
        loss, effect = self.learn(user_batch, t, users)
        if user_batch.queued:
            self.teach(user_batch, effect)
        return loss

    @torch.no_grad()
    def refresh(self, user_batch: UserBatch, t: int, users: int) -> None:
        """Lines 9, 13 and 14: reveal an interaction, and drop one when there are too many."""
        before = user_batch.reveal(t, users)
        if t < self.config.size:
            return
        user_batch.remember(before)
        scores = self.phi.eval()(before, user_batch.ratings[:users])
        gone = scores.masked_fill(before == 0, -torch.inf).argmax(1, keepdim=True)
        before.scatter_add_(1, gone, -torch.ones_like(before[:, :1]))

    def learn(self, user_batch: UserBatch, t: int, users: int) -> tuple[Tensor, Tensor]:
        """Lines 6 to 8: predict, and move the recommender; the loss and its gradient in z."""
        z = user_batch.z[:users].clone().requires_grad_()
        target = (user_batch.item[:users, t], user_batch.rating[:users, t])
        loss = self.theta.losses(z, user_batch.ratings[:users], *target).mean()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        assert z.grad is not None
        return loss.detach(), z.grad

    def teach(self, user_batch: UserBatch, effect: Tensor) -> None:
        """Lines 11 and 12: all choices of the queue again, and the policy moves (Eq. 10)."""
        users, queued = len(effect), user_batch.queued
        before = user_batch.queue[:users, :queued]
        chances = self.phi.train().chances(before, user_batch.ratings[:users, None])
        self.source_policy.zero_grad()
        # z_j is the intermediate sketch less what goes, so the sum over the queue has this slope.
        torch.autograd.backward(chances, -effect[:, None].expand_as(chances))
        self.source_policy.step()

    @torch.no_grad()
    def give_back(self, model: DotProduct, network: PaperNetwork) -> None:
        """Write what was learned into the modules of the product."""
        model.vectors.copy_(self.theta.vectors)
        model.bias[:, 0] = self.theta.bias
        model.user_prior.copy_(self.theta.user_prior)
        if not self.theta.listwise:
            model.loading.copy_(self.theta.loading)
        network.enter.copy_(self.phi.enter.weight.T)
        network.enter_bias.copy_(self.phi.enter.bias)
        network.middle.weight.copy_(self.phi.middle.weight)
        network.middle.bias.copy_(self.phi.middle.bias)
        network.leave.copy_(-self.phi.leave.weight)
        network.leave_bias[:, 0] = -self.phi.leave.bias


class Shape(NamedTuple):
    """What the cost of a time step depends on."""

    users: int
    queued: int

    @property
    def work(self) -> int:
        """How much there is to do, about."""
        return self.users * (1 + self.queued)


def shapes(lengths: Sequence[int], size: int, queue: int) -> Iterator[Shape]:
    """Every time step of a company with histories of these lengths."""
    found = np.asarray(lengths)
    for t in range(int(found.max())):
        yield Shape(int((found > t).sum()), max(0, min(t - size, queue)))


def staged(literal: Literal, shape: Shape) -> tuple[UserBatch, int]:
    """A company of made users who stand before a step of this shape, and that step."""
    config, like = literal.config, literal.theta.bias
    t = config.size + shape.queued
    draw = torch.Generator().manual_seed(0)
    item = torch.randint(literal.items, (shape.users, t + 1), generator=draw).to(like.device)
    rating = torch.randint(1, 6, item.shape, generator=draw).to(like)
    user_batch = UserBatch(item, rating, [t + 1] * shape.users, literal.items, config.queue)
    width = config.size + 1
    for decision in range(max(0, shape.queued - 1)):  # the step itself adds the last one
        some = item[:, decision : decision + width]
        user_batch.remember(torch.zeros_like(user_batch.z).scatter_(1, some, 1.0))
    user_batch.z.scatter_(1, item[:, max(0, t - 1 - config.size) : t - 1], 1.0)
    user_batch.ratings.scatter_(1, item, rating)
    return user_batch, t
