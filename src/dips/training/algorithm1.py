"""Algorithm 1 of the paper (training of DiPS), line by line: dense in items, one step at a time.

Everything is as wide as the catalogue of M items: the sketch z, the ratings y, the policy network
and each of the Q intermediate sketches in the queue. It is the reference that the fast trainer is
tested against (`update_interval = 1`), and the baseline of benchmarks/training.py.

Deviations from the paper:

- Line 6 of the paper adapts to S_{t-1}; Eqs. 1 and 2 adapt to S_t to predict x_{t+1}. This file
  follows the equations: lines 9, 13 and 15 of a step run before its line 6.
- Beyond 4 entries the inner step size falls as 4 / entries (`FULL_RATE_ENTRIES`).
- With `reuse_backward`, v of line 12 is taken before line 8 updates Theta.

Squared error and the softmax over all items are supported, in the online setting (tau = 1). With
the softmax, the inner loss may also be its quadratic approximation (`LinearisedDotProduct`). All
users of a batch advance together, the gradient of the inner loss is written out, and one backward
pass serves lines 8 and 12. More speed is not possible without leaving the algorithm.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from dips.data.interactions import Interactions
from dips.numerics.linearised_descent import curvature_bound, stable_rate
from dips.policy.paper_network import PaperNetwork
from dips.recommender.base import FULL_RATE_ENTRIES
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.training.config import TrainConfig

MOMENTUM = 0.9
"""Of the optimizer of the user prior."""


class DenseUserBatch:
    """Lines 3 and 4: a mini-batch of users with empty sketches and queues, longest first."""

    def __init__(
        self, item: Tensor, rating: Tensor, length: Sequence[int], items: int, queue: int
    ) -> None:
        self.item, self.rating = item, rating  # [users, steps]
        self.length = np.asarray(length)  # descending
        self.z: Tensor = rating.new_zeros(len(item), items)
        self.y = torch.zeros_like(self.z)
        self.queue = rating.new_zeros(len(item), queue, items)  # a ring buffer
        self.decisions = 0

    @property
    def queued(self) -> int:
        """Number of intermediate sketches in the queue."""
        return min(self.decisions, self.queue.shape[1])

    def active(self, t: int) -> int:
        """Return how many users have an interaction t; they are the first ones."""
        return int((self.length > t).sum())

    def append(self, z_hat: Tensor) -> None:
        """Line 13: append intermediate sketches to the queue; a full queue loses its oldest."""
        self.queue[: len(z_hat), self.decisions % self.queue.shape[1]] = z_hat
        self.decisions += 1


class Algorithm1:
    """Algorithm 1 of the paper, started from a recommender and a policy network of this library.

    Args:
        model: Dot product with squared error or softmax over all items; a copy is trained.
        network: The paper's policy network; a copy is trained.
        config: Sketch size K, queue size Q, inner and outer learning rates.
        reuse_backward: Take d loss / d z of line 12 from the backward pass of line 8, before Theta
            is updated. False: compute it again after the update, as the fast trainer does.
    """

    def __init__(
        self, model: DotProduct | LinearisedDotProduct, network: PaperNetwork,
        config: TrainConfig, *, reuse_backward: bool = True,
    ) -> None:  # fmt: skip
        self.config, self.reuse_backward = config, reuse_backward
        # line 1: initialise Theta, Phi and the learning rates
        self.theta = copy.deepcopy(model).requires_grad_()
        self.phi = copy.deepcopy(network).requires_grad_()
        self.items, self.listwise = model.items, model.loss.listwise
        training, policy = config.training, config.policy_training
        decay = training.weight_decay
        undecayed = [self.theta.bias]
        if isinstance(self.theta, LinearisedDotProduct):
            undecayed.append(self.theta.log_entry_scale)
        elif not self.listwise:
            undecayed.append(self.theta.user_bias_scale)
        groups = [
            {"params": [self.theta.vectors], "weight_decay": decay},
            {"params": undecayed, "weight_decay": 0.0},
        ]
        prior, user_lr = [self.theta.user_prior], training.user_lr or 0.0
        self.theta_optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(groups, training.learning_rate, fused=True),
            torch.optim.SGD(prior, user_lr, MOMENTUM, weight_decay=decay, fused=True),
        ]
        self.phi_optimizer = torch.optim.Adam(
            self.phi.parameters(), policy.policy_lr, weight_decay=policy.policy_weight_decay,
            fused=True,
        )  # fmt: skip

    def epoch(self, data: Interactions, seed: int) -> float:
        """Train on all users once and return the mean loss. Line 2 repeats it until convergence."""
        order = np.random.default_rng(seed).permutation(data.users)
        width = self.config.training.user_batch or data.users
        total = torch.zeros((), dtype=torch.float64, device=self.theta.bias.device)
        for low in range(0, len(order), width):
            batch = self.user_batch(data, order[low : low + width])
            for t in range(int(batch.length[0])):  # line 5
                total += self.step(batch, t) * batch.active(t)
        return float(total) / len(data)

    def user_batch(self, data: Interactions, users: npt.NDArray[np.int64]) -> DenseUserBatch:
        """Lines 3 and 4: return these users before their first step."""
        users = users[np.argsort(-data.lengths[users], kind="stable")]
        length = data.lengths[users]
        event = data.starts[users, None] + np.minimum(np.arange(length[0]), length[:, None] - 1)
        like = self.theta.bias
        rating = np.ones(event.shape) if data.rating is None else data.rating[event]
        return DenseUserBatch(
            torch.as_tensor(data.item[event].astype(np.int64), device=like.device),
            torch.as_tensor(rating, dtype=like.dtype, device=like.device),
            length.tolist(),
            self.items,
            self.config.policy_training.queue,
        )

    def step(self, batch: DenseUserBatch, t: int) -> Tensor:
        """Lines 6 to 15 for all users who have an interaction t; return their mean loss."""
        users = batch.active(t)
        if t > 0:
            self.refresh(batch, t - 1, users)  # lines 9, 13 and 15
        loss, v = self.update_recommender(batch, t, users)  # lines 6 to 8
        if batch.queued:  # line 10: more than K interactions
            self.update_policy(batch, v)  # lines 11 and 12
        return loss

    @torch.no_grad()
    def refresh(self, batch: DenseUserBatch, t: int, users: int) -> None:
        """Lines 9, 13 and 15: add interaction t to sketches, remove one of K + 1 items (Eq. 3)."""
        item, rating = batch.item[:users, t, None], batch.rating[:users, t, None]
        batch.y[:users].scatter_(1, item, rating)
        # z_hat is a view: batch.z itself changes in place, here (line 9) and below (line 15)
        z_hat = batch.z[:users].scatter_add_(1, item, torch.ones_like(rating))  # line 9
        if t < self.config.sketch.size:
            return  # line 15: up to K items are all kept
        batch.append(z_hat)  # line 13: the queue gets a copy
        scores = self.removal_scores(z_hat, batch.y[:users], dropout=False)
        removed = scores.masked_fill(z_hat == 0, -torch.inf).argmax(1, keepdim=True)
        z_hat.scatter_add_(1, removed, -torch.ones_like(rating))  # line 15: Eq. 4

    def update_recommender(
        self, batch: DenseUserBatch, t: int, users: int
    ) -> tuple[Tensor, Tensor]:
        """Lines 6 to 8: update Theta; return the mean loss and v = d loss / d z [users, items]."""
        loss, v = self.loss_and_gradient(batch, t, users)
        for optimizer in self.theta_optimizers:  # line 8
            optimizer.step()
        if not self.reuse_backward:
            _, v = self.loss_and_gradient(batch, t, users)
        return loss, v

    def loss_and_gradient(self, batch: DenseUserBatch, t: int, users: int) -> tuple[Tensor, Tensor]:
        """Lines 6 and 7: adapt to S_t, predict interaction t; return mean loss and d loss / d z."""
        z = batch.z[:users].clone().requires_grad_()
        target = batch.item[:users, t], batch.rating[:users, t]
        loss = self.losses(z, batch.y[:users], *target).mean()
        for optimizer in self.theta_optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert z.grad is not None
        return loss.detach(), z.grad

    def update_policy(self, batch: DenseUserBatch, v: Tensor) -> None:
        """Lines 11 and 12: compute the queue's z_j under the current Phi; update Phi by Eq. 10."""
        z_hat = batch.queue[: len(v), : batch.queued]
        w = self.removal_probabilities(z_hat, batch.y[: len(v), None])  # line 11
        self.phi_optimizer.zero_grad()
        # line 12: z_j = z_hat_j - w_j (Eq. 4), so v' sum_j z_j has the slope -v in each w_j
        torch.autograd.backward(w, -v[:, None].expand_as(w))
        self.phi_optimizer.step()

    def losses(self, z: Tensor, y: Tensor, item: Tensor, rating: Tensor) -> Tensor:
        """Return losses [users] of the next interactions: l_{t+1}(theta*_t) of Eq. 1."""
        table, intercept = self.features()
        user = self.adapt(z, self.theta.standardise(y), table, intercept)  # line 6
        if self.listwise:
            return functional.cross_entropy(user @ table.T + intercept, item, reduction="none")
        score = (table[item] * user).sum(1) + intercept[item]
        return (score - self.theta.standardise(rating)) ** 2

    def features(self) -> tuple[Tensor, Tensor]:
        """Return features [items, dim] and intercepts [items] of scores linear in the user."""
        vectors, intercept = self.theta.vectors, self.theta.bias[:, 0] + self.theta.offset
        if isinstance(self.theta, LinearisedDotProduct) or self.listwise:
            return vectors, intercept
        return torch.cat(
            [vectors, self.theta.user_bias_scale.expand(len(vectors), 1)], 1
        ), intercept

    def adapt(self, z: Tensor, y: Tensor, table: Tensor, intercept: Tensor) -> Tensor:
        """Return users [users, dim] after gradient descent (Eq. 7) on the weighted loss (Eq. 8)."""
        total, user = z.sum(1, keepdim=True), self.theta.user_prior.expand(len(z), -1)
        settings = self.config.model
        rate = settings.inner_lr * FULL_RATE_ENTRIES / total.detach().clamp_min(FULL_RATE_ENTRIES)
        if isinstance(self.theta, LinearisedDotProduct):
            (mean, covariance), scale = self.theta.moments, self.theta.entry_scale
            bound = curvature_bound(covariance.detach())
            rate = stable_rate(rate, total.detach(), bound)
            constant = scale * (total * mean - z @ table)
            for _ in range(settings.inner_steps):
                user = user - rate * (constant + total * (user @ covariance))
            return user
        if self.listwise:
            sketched = z @ table
            for _ in range(settings.inner_steps):
                probability = (user @ table.T + intercept).softmax(1)
                user = user - rate * (total * (probability @ table) - sketched)
            return user
        target = y - intercept
        for _ in range(settings.inner_steps):
            user = user - 2 * rate * ((z * (user @ table.T - target)) @ table)
        return user

    def removal_scores(self, z_hat: Tensor, y: Tensor, dropout: bool) -> Tensor:
        """Return f(z_hat * y; Phi) of Eq. 4, [..., items]: a network of M-128-128-M units."""
        phi, share = self.phi, self.phi.dropout
        inputs = z_hat * (y.double() / phi.spread).to(y.dtype)
        hidden = functional.linear(inputs, phi.input_weight.T, phi.input_bias).relu()
        hidden = functional.dropout(hidden, share, dropout)
        hidden = functional.linear(hidden, phi.hidden.weight, phi.hidden.bias).relu()
        hidden = functional.dropout(hidden, share, dropout)
        # a high score of PaperNetwork means keep; the paper's means remove
        return -functional.linear(hidden, phi.output_weight, phi.output_bias[:, 0])

    def removal_probabilities(self, z_hat: Tensor, y: Tensor) -> Tensor:
        """Return sigma(f) of Eq. 4, [..., items]; log z_hat masks items outside the sketch."""
        return (self.removal_scores(z_hat, y, dropout=True) + z_hat.log()).softmax(-1)
