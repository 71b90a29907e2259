"""The effect of an example's weight on another loss at the optimum (the influence function).

Needs only products with the Hessian, so nothing of size dim x dim is formed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


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
        pace = torch.where(along > 0, size / along.clamp_min(1e-300), 0.0)
        solution = solution + pace * direction
        residual = residual - pace * image
        fresh = (residual**2).sum(1, keepdim=True)
        turn = torch.where(size > 0, fresh / size.clamp_min(1e-300), 0.0)
        direction = residual + turn * direction
        size = fresh
    return solution


def influences(
    gradients: Tensor,
    target: Tensor,
    product: Callable[[Tensor], Tensor],
    damping: float,
    steps: int,
) -> Tensor:
    """[rows, n] d target / d weight = - target' (H + damping I)^-1 gradient.

    `gradients` [rows, n, dim] of the examples, `target` [rows, dim] gradient of the loss in question.
    """
    solved = solve(product, target, damping, steps)
    return -(gradients * solved[:, None, :]).sum(2)
