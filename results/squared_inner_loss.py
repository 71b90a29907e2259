"""The inner loop of implicit matrix factorisation, for the comparison of `inner_losses.py`.

A sketch with entries x_k of weight w_k has the loss

    c sum_k w_k (x_k . u - 1)^2 + w0 u' G u + lambda |u - prior|^2,    G = E'E / items

(Hu, Koren and Volinsky 2008): entries have the target 1, all items the target 0. The user vector
that scores items is tau u. c, w0, lambda and tau are learned. The loss is descended in as many
steps as the other inner loops take, or solved. `learned` gets its credit in closed form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dips.credit import adjoint
from dips.credit.adjoint import FilteredSoftmaxAdjoint, RepeatSoftmaxAdjoint, SoftmaxAdjoint
from dips.numerics.descent import Rounding, identity
from dips.numerics.linearised_descent import item_sums
from dips.recommender import kernel_inputs, registry, signals
from dips.recommender.base import Evidence
from dips.recommender.linearised import LinearisedDotProduct

START = {"log_entry_scale": 1.0, "log_item_weight": 1.0, "log_penalty": 0.1, "log_tau": 4.0}
"""Initial c, w0, lambda and tau."""


class Problem(NamedTuple):
    """The quadratic loss u' A u / 2 - b . u of each sketch."""

    matrix: Tensor  # [rows, dim, dim] A
    vector: Tensor  # [rows, dim] b
    start: Tensor  # [rows, dim]


class SquaredDotProduct(LinearisedDotProduct):
    """Dot product for clicks whose inner loop has the squared loss with a Gram matrix."""

    no_weight_decay = (*LinearisedDotProduct.no_weight_decay, *START)
    solved = False

    def __init__(
        self,
        *,
        dim: int = 32,
        generator: torch.Generator | None = None,
        repeat_feature: bool = False,
        recency_decay: bool = False,
        tie_embeddings: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            dim=dim,
            generator=generator,
            repeat_feature=repeat_feature,
            recency_decay=recency_decay,
            tie_embeddings=tie_embeddings,
            **settings,
        )
        for name, value in START.items():
            setattr(self, name, nn.Parameter(torch.tensor(value).log()))

    def item_sums(self) -> Tensor:
        """Return sums with equal weights: the Gram matrix."""
        return item_sums(self.table, torch.zeros_like(self.biases[:, 0]))

    def quadratic(self, evidence: Evidence, rounding: Rounding = identity) -> Problem:
        """Return the inner problem of sketches."""
        weight = self.entry_scale * self.effective_weights(evidence, rounding)
        vectors = self.input_vectors(evidence.item)
        mean, covariance = self.moments
        gram = covariance + mean[:, None] * mean
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        penalty = self.log_penalty.exp()
        common = self.log_item_weight.exp() * gram + penalty * eye
        matrix = (vectors * weight[:, :, None]).transpose(1, 2) @ vectors + common
        start = self.initial_user(len(weight))
        return Problem(matrix, (vectors * weight[:, :, None]).sum(1) + penalty * start, start)

    def rates(self, problem: Problem) -> Tensor:
        """Return step sizes [rows, 1] that cannot diverge; constants."""
        return 1 / problem.matrix.detach().abs().sum(2).amax(1, keepdim=True)

    def trajectory(self, problem: Problem, rounding: Rounding = identity) -> list[Tensor]:
        """Return the users [rows, dim] before each step and after the last one."""
        if self.solved:
            return [rounding(torch.linalg.solve(problem.matrix, problem.vector))]
        users, rate = [problem.start], self.rates(problem)
        for _ in range(self.inner_steps):
            gradient = _product(problem.matrix, users[-1]) - problem.vector
            users.append(rounding(users[-1] - rate * gradient))
        return users

    def read(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return tau times the user vectors after the inner loop; with repeat scores."""
        user = self.trajectory(self.quadratic(evidence, rounding), rounding)[-1]
        return self.with_repeat_scores(rounding(self.log_tau.exp() * user), evidence, rounding)

    def input_products(self, items: Tensor, vector: Tensor) -> Tensor:
        """Return x . t - x' M x where `vector` holds t and M, as `squared_adjoint` packs them."""
        dim = len(self.user_prior)
        vectors = self.input_vectors(items)
        matrix = vector[:, dim:].unflatten(1, (dim, dim))
        return _product(vectors, vector[:, :dim]) - ((vectors @ matrix) * vectors).sum(2)


class SolvedDotProduct(SquaredDotProduct):
    """The same loss at its minimum."""

    solved = True


def squared_adjoint(
    model: SquaredDotProduct, evidence: Evidence, item: Tensor, rating: Tensor
) -> tuple[Tensor, SoftmaxAdjoint | FilteredSoftmaxAdjoint | RepeatSoftmaxAdjoint]:
    """Return losses and adjoint: the weight of an entry x has the gradient x . t - x' M x."""
    problem = model.quadratic(evidence)
    users, tau = model.trajectory(problem), model.log_tau.exp()
    user = model.with_repeat_scores(tau * users[-1], evidence)
    loss, gradient = adjoint._filtered_target_gradient(model, user, evidence, item, rating)
    gradient = tau * gradient[:, : users[-1].shape[1]]
    if model.solved:
        total = torch.linalg.solve(problem.matrix, gradient)
        outer = total[:, :, None] * users[-1][:, None, :]
    else:
        rate = model.rates(problem)
        total, outer = torch.zeros_like(gradient), torch.zeros_like(problem.matrix)
        for before in reversed(users[:-1]):
            total = total + rate * gradient
            outer = outer + (rate * gradient)[:, :, None] * before[:, None, :]
            gradient = gradient - rate * _product(problem.matrix, gradient)
    packed = model.entry_scale * torch.cat([total, outer.flatten(1)], 1)
    found = SoftmaxAdjoint(packed, torch.zeros_like(loss))
    if model.has_repeat_feature:
        log_norm = loss + model.predict(user, item[:, None])[:, 0]
        return loss, RepeatSoftmaxAdjoint(*found, user, log_norm, item)
    return loss, adjoint._filtered(model, found, user, loss, item)


def use_squared_loss(solved: bool) -> None:
    """Let `--inner-loss linearised` make recommenders with the squared loss, in this process."""
    registry.LinearisedDotProduct = SolvedDotProduct if solved else SquaredDotProduct  # type: ignore[misc]
    adjoint._linearised_adjoint = squared_adjoint  # type: ignore[assignment]
    for module in (kernel_inputs, signals):  # scores of candidates come from `read`
        module.is_linearisable = lambda model: False


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return matrices [rows, n, m] times vectors [rows, m], row by row."""
    return (matrix @ vector[:, :, None])[:, :, 0]
