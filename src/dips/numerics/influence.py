"""The effect of an example's weight on another loss at the optimum (the influence function)."""

from __future__ import annotations

import torch
from torch import Tensor


def influences(gradients: Tensor, target: Tensor, hessian: Tensor, damping: float) -> Tensor:
    """[rows, n] d target / d weight = - target' (hessian + damping I)^-1 gradient.

    `gradients` [rows, n, dim], `target` [rows, dim] gradient of the loss in question, `hessian`
    [rows, dim, dim] of the objective that was minimised.
    """
    ridge = damping * torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
    solved = torch.linalg.solve(hessian + ridge, target[:, :, None])
    return -(gradients @ solved)[:, :, 0]
