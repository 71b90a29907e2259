"""The effect of an example's weight on the loss of all at the optimum (the influence function).

Needs only products with the Hessian; where scores are linear in the parameters these shrink to
the Gram matrix of the examples, and for a softmax over many items to the covariance of their rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PIECE = 1 << 13
"""Items whose pairs of entries are formed at once."""


def covariance(chance: Tensor, table: Tensor) -> Tensor:
    """[rows, dim, dim] of the rows of a table [items, dim] that are drawn with these chances.

    One product of matrices, where every product of the softmax's Hessian with a vector would go
    through all items again.
    """
    dim = table.shape[1]
    mean = chance @ table
    second = torch.zeros(len(chance), dim * dim, dtype=chance.dtype, device=chance.device)
    for low in range(0, len(table), PIECE):
        rows = table[low : low + PIECE]
        pairs = rows[:, :, None] * rows[:, None, :]  # [items, dim, dim]
        second = second + chance[:, low : low + PIECE] @ pairs.flatten(1)
    return second.view(-1, dim, dim) - mean[:, :, None] * mean[:, None, :]


def solve(
    product: Callable[[Tensor], Tensor], target: Tensor, damping: float, steps: int
) -> Tensor:
    """Conjugate gradients for (H + damping I) x = target, row by row; `product(v)` is H v.

    A Hessian of rank r needs r + 1 steps. Rows that have converged stand still.
    """
    solution = torch.zeros_like(target)  # [rows, dim]
    residual = target
    direction = residual
    size = (residual**2).sum(1, keepdim=True)
    for _ in range(steps):
        image = product(direction) + damping * direction
        along = (direction * image).sum(1, keepdim=True)
        size = torch.where(along > 0, size, 0.0)  # a row without curvature is left where it is
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
    """[rows, n] d total / d weight of each example = - total' (H + damping I)^-1 gradient.

    `gradients` [rows, n, dim] of what each example adds to what is descended on, `total` [rows,
    dim] that of the loss of all; the Hessian times a vector is `product`.
    """
    solved = solve(product, total, damping, steps)
    return -(gradients * solved[:, None, :]).sum(2)


def linear_influences(
    features: Tensor, slope: Tensor, bend: Tensor, weight: Tensor, damping: float
) -> Tensor:
    """The same for examples whose losses depend on scores `features . parameters`.

    `slope` and `bend` [rows, n] are first and second derivatives of the losses in the scores. With
    G = F F' and B = diag(weight bend), F (F' B F + d I)^-1 F' = G (B G + d I)^-1.
    """
    gram = features @ features.transpose(1, 2)  # [rows, n, n]
    system = (weight * bend)[:, :, None] * gram
    solved = eliminate(system, damping, weight * slope)
    return -slope * (gram * solved[:, None, :]).sum(2)


def eliminate(matrix: Tensor, damping: float, target: Tensor) -> Tensor:
    """Gauss-Jordan for small (matrix + damping I) x = target with positive principal minors."""
    size = matrix.shape[-1]
    ridge = damping * torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    table = torch.cat([matrix + ridge, target[:, :, None]], 2)  # [rows, n, n + 1]
    for column in range(size):
        row = table[:, column : column + 1] / table[:, column : column + 1, column : column + 1]
        others = table - table[:, :, column : column + 1] * row
        table = torch.cat([others[:, :column], row, others[:, column + 1 :]], 1)
    return table[:, :, size]
