"""Influence functions (Eq. 11): the gradient of a loss in example weights at the inner optimum.

The general form needs only Hessian-vector products. For scores that are linear in the parameters
it reduces to the Gram matrix of the examples, for a softmax to the covariance of the items' rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK_ITEMS = 1 << 13
"""Items whose outer products are formed at once."""


def covariance(probability: Tensor, table: Tensor) -> Tensor:
    """Return the covariance of a random row of a table: the Hessian of a softmax loss.

    It is computed once, while each Hessian-vector product would go through all items again.

    Args:
        probability: Probability of each item, [rows, items].
        table: Features of the items, [items, dim].

    Returns:
        [rows, dim, dim]
    """
    dim = table.shape[1]
    mean = probability @ table
    second = torch.zeros(
        len(probability), dim * dim, dtype=probability.dtype, device=probability.device
    )
    for low in range(0, len(table), CHUNK_ITEMS):
        rows = table[low : low + CHUNK_ITEMS]
        pairs = rows[:, :, None] * rows[:, None, :]  # [items, dim, dim]
        second = second + probability[:, low : low + CHUNK_ITEMS] @ pairs.flatten(1)
    return second.view(-1, dim, dim) - mean[:, :, None] * mean[:, None, :]


def solve(
    product: Callable[[Tensor], Tensor], target: Tensor, damping: float, steps: int
) -> Tensor:
    """Solve (H + damping I) x = target by conjugate gradients, row by row.

    Args:
        product: From vectors v [rows, dim] to H v.
        target: [rows, dim]
        damping: Added to the diagonal of the Hessian.
        steps: Number of steps; a Hessian of rank r needs r + 1.

    Returns:
        x, [rows, dim]. Rows that have converged no longer change.
    """
    solution = torch.zeros_like(target)  # [rows, dim]
    residual = target
    direction = residual
    size = (residual**2).sum(1, keepdim=True)
    for _ in range(steps):
        image = product(direction) + damping * direction
        along = (direction * image).sum(1, keepdim=True)
        size = torch.where(along > 0, size, 0.0)  # a row without curvature does not move
        pace = size / along.clamp_min(1e-300)
        solution = solution + pace * direction
        residual = residual - pace * image
        fresh = (residual**2).sum(1, keepdim=True)
        turn = torch.where(size > 0, fresh / size.clamp_min(1e-300), 0.0)
        direction = residual + turn * direction
        size = fresh
    return solution


def influences(
    gradients: Tensor,
    total: Tensor,
    product: Callable[[Tensor], Tensor],
    damping: float,
    steps: int,
) -> Tensor:
    """Return the influence of each example: -total' (H + damping I)^-1 gradient (Eq. 11).

    Args:
        gradients: Gradient of each example's loss in the parameters, [rows, n, dim].
        total: Gradient of the loss in question in the parameters, [rows, dim].
        product: From vectors v [rows, dim] to H v.
        damping: Added to the diagonal of the Hessian.
        steps: Conjugate-gradient steps.

    Returns:
        d total loss / d weight, [rows, n].
    """
    solved = solve(product, total, damping, steps)
    return -(gradients * solved[:, None, :]).sum(2)


def linear_influences(
    features: Tensor, slope: Tensor, curvature: Tensor, weight: Tensor, damping: float
) -> Tensor:
    """Return the influence (Eq. 11) of examples whose losses depend on `features . parameters`.

    With G = F F' and B = diag(weight * curvature): F (F' B F + d I)^-1 F' = G (B G + d I)^-1.

    Args:
        features: F, [rows, n, dim].
        slope: First derivatives of the losses in the scores, [rows, n].
        curvature: Second derivatives of the losses in the scores, [rows, n].
        weight: Weights of the examples, [rows, n].
        damping: Added to the diagonal of the Hessian.

    Returns:
        d weighted loss / d weight, [rows, n].
    """
    gram = features @ features.transpose(1, 2)  # [rows, n, n]
    system = (weight * curvature)[:, :, None] * gram
    solved = solve_dense(system, damping, weight * slope)
    return -slope * (gram * solved[:, None, :]).sum(2)


def solve_dense(matrix: Tensor, damping: float, target: Tensor) -> Tensor:
    """Solve small systems (matrix + damping I) x = target by Gauss-Jordan elimination.

    Args:
        matrix: [rows, n, n]; with the damping its principal minors are positive.
        damping: Added to the diagonal.
        target: [rows, n]

    Returns:
        x, [rows, n]
    """
    size = matrix.shape[-1]
    ridge = damping * torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    table = torch.cat([matrix + ridge, target[:, :, None]], 2)  # [rows, n, n + 1]
    for column in range(size):
        row = table[:, column : column + 1] / table[:, column : column + 1, column : column + 1]
        others = table - table[:, :, column : column + 1] * row
        table = torch.cat([others[:, :column], row, others[:, column + 1 :]], 1)
    return table[:, :, size]
