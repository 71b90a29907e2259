"""Gradient descent of users on a quadratic approximation of the softmax loss over all items.

The softmax loss of an entry x is log sum_i exp(b_i + e_i . u) - x . u. At u = 0, its first term has
the gradient `mean` and the Hessian `covariance`: moments of all item vectors e_i under the
probabilities softmax(b). The quadratic approximation, with a scale c of its linear terms, is

    c (mean - x) . u + u' covariance u / 2

The moments are the same for all users, so a step (Eq. 7) needs no sum over items: it costs
O(n dim + dim^2) for n entries. With equal biases the moments are those of the Gram matrix of
implicit matrix factorisation (Hu, Koren and Volinsky 2008), centred. The descent can be
differentiated; `adjoint` has its gradients in the weights of entries in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dips.numerics import fixed_point
from dips.numerics.descent import Rounding, identity
from dips.numerics.fixed_point import STATE_BITS, quantize


class Moments(NamedTuple):
    """Moments of all item vectors."""

    mean: Tensor  # [dim]
    covariance: Tensor  # [dim, dim]


class LinearisedProblem(NamedTuple):
    """The weighted quadratic loss of a sketch (Eq. 8), and how it is descended (Eq. 7)."""

    moments: Moments
    scale: Tensor  # [] c
    feature_sum: Tensor  # [rows, dim] weighted sum of the vectors of the entries
    weight: Tensor  # [rows] sum of the weights of the entries
    start: Tensor  # [rows, dim] user vectors before the first step
    rate: Tensor  # [rows] step size; a constant
    penalty: float  # weight of the regulariser |user - start|^2 of Eq. 2


class LinearisedAdjoint(NamedTuple):
    """Adjoint of the descent: the weight of an entry x has the gradient x . total - common."""

    total: Tensor  # [rows, dim]
    common: Tensor  # [rows]


def item_sums(table: Tensor, log_weight: Tensor) -> Tensor:
    """Return the sum over items of exp(log_weight) (1, e)(1, e)', [dim + 1, dim + 1].

    It holds the sum of the weights, the weighted sum of the vectors, and that of their outer
    products. Sums over parts of the items add up.

    Args:
        table: Item vectors e, [items, dim].
        log_weight: [items].
    """
    vectors = functional.pad(table, (1, 0), value=1.0)
    return (vectors * log_weight.exp()[:, None]).T @ vectors


def moments(sums: Tensor) -> Moments:
    """Return the moments of item vectors from `item_sums`."""
    normalised = sums / sums[0, 0]
    mean = normalised[0, 1:]
    return Moments(mean, normalised[1:, 1:] - mean[:, None] * mean)


def quantized_moments(table: Tensor, log_weight: Tensor) -> Moments:
    """Return the moments under softmax(log_weight) on the fixed-point grid, for decisions.

    Args:
        table: Item vectors, [items, dim], on the grid.
        log_weight: [items].
    """
    probability = fixed_point.softmax(log_weight[None])[0]
    mean = quantize(probability @ table, STATE_BITS)
    second = (table * probability[:, None]).T @ table
    return Moments(mean, quantize(second - mean[:, None] * mean, STATE_BITS))


def curvature_bound(covariance: Tensor) -> Tensor:
    """Return an upper bound [] of the eigenvalues: the largest sum of a row's absolute values."""
    return covariance.abs().sum(1).amax()


def stable_rate(rate: Tensor, weight: Tensor, bound: Tensor, penalty: float = 0.0) -> Tensor:
    """Return step sizes [rows] at which the descent does not diverge: rate * curvature <= 1.

    Args:
        rate: Step sizes wanted, [rows].
        weight: Sums of the weights of entries, [rows].
        bound: Upper bound of the eigenvalues of the covariance, [].
        penalty: Weight of the regulariser.
    """
    return rate / (rate * weight * bound + 2 * penalty * rate).clamp_min(1)


def iterates(problem: LinearisedProblem, steps: int, rounding: Rounding = identity) -> list[Tensor]:
    """Return the users [rows, dim] before the first step and after each (Eq. 7).

    Args:
        problem: The weighted loss, the start and the step size.
        steps: Number of steps.
        rounding: Applied to the iterate after each step.
    """
    (mean, covariance), scale, feature_sum, weight, start, rate, penalty = problem
    total = weight[:, None]
    constant = scale * (total * mean - feature_sum)
    users = [start]
    for _ in range(steps):
        user = users[-1]
        gradient = constant + total * (user @ covariance)
        if penalty:
            gradient = gradient + 2 * penalty * (user - start)
        users.append(rounding(user - rate[:, None] * gradient))
    return users


def adjoint(
    problem: LinearisedProblem, users: Sequence[Tensor], gradient: Tensor
) -> LinearisedAdjoint:
    """Return the adjoint of the descent: the recursion lambda_s = lambda_{s+1} - alpha H lambda.

    Args:
        problem: The weighted loss, the start and the step size.
        users: All iterates.
        gradient: Gradient of a loss in the last iterate, [rows, dim].
    """
    (mean, covariance), rate = problem.moments, problem.rate[:, None]
    stay, step = 1 - 2 * problem.penalty * rate, rate * problem.weight[:, None]
    total, common = torch.zeros_like(gradient), torch.zeros_like(problem.rate)
    for user in reversed(users[:-1]):
        total = total + gradient
        common = common + (gradient * (problem.scale * mean + user @ covariance)).sum(1)
        gradient = stay * gradient - step * (gradient @ covariance)
    return LinearisedAdjoint(problem.scale * rate * total, problem.rate * common)
