"""The inner loop of implicit matrix factorisation, for the comparison of `inner_losses.py`.

A sketch with entries x_k of weight w_k has the loss

    c sum_k w_k (x_k . u - 1)^2 + w0 u' G u + lambda |u - prior|^2,    G = E'E / items

(Hu, Koren and Volinsky 2008): entries have the target 1, all items the target 0. The user vector
that scores items is tau u. c, w0, lambda and tau are learned. The loss is descended in as many
steps as the other inner loops take, or solved. `learned` gets its credit in closed form.

The solution needs matrices of the size of a sketch only (Woodbury). It is made of products and
element-wise operations: LAPACK is slow for many small matrices, and its calls cannot be captured in
a CUDA graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dips.credit import adjoint
from dips.credit.adjoint import FilteredSoftmaxAdjoint, RepeatSoftmaxAdjoint, SoftmaxAdjoint
from dips.numerics.descent import Rounding, identity
from dips.numerics.linearised_descent import item_sums
from dips.recommender import kernel_inputs, registry, signals
from dips.recommender.base import Evidence
from dips.recommender.filtered_loss import filters_in_loss
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.stacked import StackedRecommenders

START = {"log_entry_scale": 1.0, "log_item_weight": 1.0, "log_penalty": 0.1, "log_tau": 4.0}
"""Initial c, w0, lambda and tau."""


QUANTIZED = StackedRecommenders.quantized
"""The method of the library, which `use_squared_loss` replaces."""
INVERSE_STEPS = 20
"""Steps of `inverse`: enough in float64 up to a condition number of 20,000."""


class Problem(NamedTuple):
    """The quadratic loss of each sketch, without the terms that all sketches share."""

    vectors: Tensor  # [rows, n, dim] input vectors x of the entries
    weight: Tensor  # [rows, n] their weights, times c
    penalty: Tensor  # [] lambda
    start: Tensor  # [rows, dim] prior


class SolvedAdjoint(NamedTuple):
    """Adjoint t at the minimum u: the weight of an entry x has the gradient (x . t) (1 - x . u).

    The gradient is not linear in (t, u), so adjoints cannot be summed, unlike `SoftmaxAdjoint`.
    """

    total: Tensor  # [rows, 2 dim] t, then u
    common: Tensor  # [rows] zeros


class SquaredDotProduct(LinearisedDotProduct):
    """Dot product for clicks whose inner loop has the squared loss with a Gram matrix."""

    no_weight_decay = (*LinearisedDotProduct.no_weight_decay, *START)

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

    def common(self) -> Tensor:
        """Return the curvature that all sketches share, w0 G + lambda I, [dim, dim]."""
        mean, covariance = self.moments
        gram = covariance + mean[:, None] * mean
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        return self.log_item_weight.exp() * gram + self.log_penalty.exp() * eye

    def quadratic(self, evidence: Evidence, rounding: Rounding = identity) -> Problem:
        """Return the inner problem of sketches."""
        weight = self.entry_scale * self.effective_weights(evidence, rounding)
        vectors, start = self.input_vectors(evidence.item), self.initial_user(len(weight))
        return Problem(vectors, weight, self.log_penalty.exp(), start)

    def matrix(self, problem: Problem) -> Tensor:
        """Return the Hessian of the loss of each sketch, [rows, dim, dim]."""
        weighted = problem.vectors * problem.weight[:, :, None]
        return weighted.transpose(1, 2) @ problem.vectors + self.common()

    def rates(self, problem: Problem) -> Tensor:
        """Return step sizes [rows, 1] that cannot diverge; constants."""
        return 1 / self.matrix(problem).detach().abs().sum(2).amax(1, keepdim=True)

    def trajectory(self, problem: Problem, rounding: Rounding = identity) -> list[Tensor]:
        """Return the users [rows, dim] before each step and after the last one."""
        users, matrix, rate = [problem.start], self.matrix(problem), self.rates(problem)
        vector = (problem.vectors * problem.weight[:, :, None]).sum(1)
        vector = vector + problem.penalty * problem.start
        for _ in range(self.inner_steps):
            gradient = _product(matrix, users[-1]) - vector
            users.append(rounding(users[-1] - rate * gradient))
        return users

    def adjoint(self, problem: Problem, users: list[Tensor], gradient: Tensor) -> Tensor:
        """Return the packed adjoint [rows, dim + dim^2] that `input_products` reads.

        Args:
            problem: The inner problem of the sketches.
            users: Their trajectory.
            gradient: Gradient of the loss of predictions in the last users, [rows, dim].
        """
        matrix, rate = self.matrix(problem), self.rates(problem)
        total, outer = torch.zeros_like(gradient), torch.zeros_like(matrix)
        for before in reversed(users[:-1]):
            total = total + rate * gradient
            outer = outer + (rate * gradient)[:, :, None] * before[:, None, :]
            gradient = gradient - rate * _product(matrix, gradient)
        return self.entry_scale * torch.cat([total, outer.flatten(1)], 1)

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
    """Dot product for clicks whose users minimise the squared loss with a Gram matrix."""

    stored_inverse: Tensor
    """[dim, dim] inverse of `common`; [0, 0]: computed. Rollouts store it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register_buffer("stored_inverse", torch.zeros(0, 0), persistent=False)

    def inverse(self) -> Tensor:
        """Return the inverse of `common`, [dim, dim]."""
        return self.stored_inverse if self.stored_inverse.numel() else inverse(self.common())

    def trajectory(self, problem: Problem, rounding: Rounding = identity) -> list[Tensor]:
        """Return the users [rows, dim] at the minimum, in a list."""
        right = problem.penalty * problem.start
        return [rounding(minimum(problem, self.inverse(), right, 1.0))]

    def adjoint(self, problem: Problem, users: list[Tensor], gradient: Tensor) -> Tensor:
        """Return the packed adjoint [rows, 2 dim] that `input_products` reads.

        Args:
            problem: The inner problem of the sketches.
            users: Their trajectory.
            gradient: Gradient of the loss of predictions in the users, [rows, dim].
        """
        total = minimum(problem, self.inverse(), gradient, 0.0)
        return torch.cat([self.entry_scale * total, users[-1]], 1)

    def input_products(self, items: Tensor, vector: Tensor) -> Tensor:
        """Return (x . t) (1 - x . u) where `vector` holds t and u, as `adjoint` packs them."""
        vectors, (total, user) = self.input_vectors(items), vector.chunk(2, 1)
        return _product(vectors, total) * (1 - _product(vectors, user))


def squared_adjoint(
    model: SquaredDotProduct, evidence: Evidence, item: Tensor, rating: Tensor, seen: Tensor
) -> tuple[Tensor, SoftmaxAdjoint | FilteredSoftmaxAdjoint | RepeatSoftmaxAdjoint | SolvedAdjoint]:
    """Return losses and adjoint of predictions; the model's `input_products` reads it."""
    problem = model.quadratic(evidence)
    users, tau = model.trajectory(problem), model.log_tau.exp()
    user = model.with_repeat_scores(tau * users[-1], evidence)
    loss, gradient = adjoint._filtered_target_gradient(model, user, evidence, item, rating, seen)
    gradient = tau * gradient[:, : users[-1].shape[1]]
    found = SoftmaxAdjoint(model.adjoint(problem, users, gradient), torch.zeros_like(loss))
    if model.has_repeat_feature:
        log_norm = loss + model.predict(user, item[:, None])[:, 0]
        return loss, RepeatSoftmaxAdjoint(*found, user, log_norm, item)
    if isinstance(model, SolvedDotProduct) and not filters_in_loss(model):
        return loss, SolvedAdjoint(*found)
    return loss, adjoint._filtered(model, found, user, loss, item)


def inverse(matrix: Tensor) -> Tensor:
    """Return the inverse of a symmetric positive definite matrix by Newton-Schulz steps.

    The last step alone is differentiated: its gradient is that of the inverse.

    Args:
        matrix: [dim, dim].
    """
    fixed = matrix.detach()
    eye = torch.eye(len(fixed), dtype=fixed.dtype, device=fixed.device)
    found = eye / fixed.abs().sum(1).amax()
    for _ in range(INVERSE_STEPS):
        found = 2 * found - found @ fixed @ found
    return 2 * found - found @ matrix @ found


def minimum(problem: Problem, inverse: Tensor, right: Tensor, target: float) -> Tensor:
    """Return the minimum of sum_k W_k (X_k . u - target)^2 / 2 + u' C u / 2 - right . u.

    The solution (Woodbury): u = P right + P X' y, where y solves
    (I + W X P X') y = W (target - X P right).

    Args:
        problem: Entries X and weights W of the sketches, times c.
        inverse: P, the inverse of C, [dim, dim].
        right: [rows, dim].
        target: Target of all entries.

    Returns:
        [rows, dim].
    """
    near = problem.vectors @ inverse  # [rows, n, dim]
    start = right @ inverse
    weight = problem.weight
    matrix = weight[:, :, None] * (near @ problem.vectors.transpose(1, 2))
    eye = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    residual = weight * (target - _product(problem.vectors, start))
    found = SmallSolve.apply(matrix + eye, residual)  # type: ignore[no-untyped-call]
    return start + (near * found[:, :, None]).sum(1)


class SmallSolve(torch.autograd.Function):
    """Solutions of many small systems, by elimination without pivoting.

    The matrices of `minimum` are similar to I + S, S positive semi-definite: no pivot is below 1.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, vector: Tensor) -> Tensor:
        """Return solutions [rows, n] of systems with a matrix [rows, n, n] and a vector [rows, n].

        Rows are the last axis of all intermediate tensors: operations are vectorised over them.
        """
        left, right = matrix.permute(1, 2, 0).contiguous(), vector.T
        kept = []  # row of the triangular matrix without its pivot, pivot, right side
        for _ in range(len(left)):
            factor = left[1:, 0] / left[0, 0]
            kept.append((left[0, 1:], left[0, 0], right[0]))
            left = torch.addcmul(left[1:, 1:], factor[:, None], left[0, 1:], value=-1)
            right = torch.addcmul(right[1:], factor, right[0], value=-1)
        found: list[Tensor] = []
        for row, pivot, value in reversed(kept):
            if found:
                value = value - (row * torch.stack(found[::-1])).sum(0)
            found.append(value / pivot)
        return torch.stack(found[::-1], 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save the matrices and the solutions."""
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients in matrices and vectors."""
        matrix, found = ctx.saved_tensors
        back = SmallSolve.apply(matrix.transpose(1, 2), gradients[0])  # type: ignore[no-untyped-call]
        return -back[:, :, None] * found[:, None, :], back


def use_squared_loss(solved: bool) -> None:
    """Let `--inner-loss linearised` make recommenders with the squared loss, in this process."""
    registry.LinearisedDotProduct = SolvedDotProduct if solved else SquaredDotProduct  # type: ignore[misc]
    adjoint._linearised_adjoint = squared_adjoint  # type: ignore[assignment]
    for module in (kernel_inputs, signals):  # scores of candidates come from `read`
        module.is_linearisable = lambda model: False
    StackedRecommenders.quantized = _quantized if solved else QUANTIZED  # type: ignore[method-assign]


def _quantized(stack: StackedRecommenders) -> StackedRecommenders:
    """Return the recommenders on the fixed-point grid, with the inverse that they all read.

    A rollout reads it at every refresh.
    """
    found = QUANTIZED(stack)
    known: Tensor = found.call(lambda model: inverse(model.common()))
    return StackedRecommenders(found.template, found.state | {"stored_inverse": known})


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return matrices [rows, n, m] times vectors [rows, m], row by row."""
    return (matrix @ vector[:, :, None])[:, :, 0]
