"""Choosing K of n: the Top-K projection and exact sampling from it. Knows nothing of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dips.numerics.relaxation import level


class _Projection(torch.autograd.Function):
    """u = sigmoid(f + nu) with sum u = k; its derivative follows from the KKT conditions."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, present: Tensor, k: Tensor) -> Tensor:
        """Find nu by bisection, in float64."""
        logits = scores.masked_fill(~present, 0.0)
        nu = level(logits, present, k[..., None])
        chosen = torch.where(present, (logits + nu).sigmoid(), 0.0)
        full = present.sum(-1, keepdim=True) <= k[..., None]
        return torch.where(full, present.double(), chosen)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """The derivative is a function of the result."""
        del inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Pull back through u: h (g - <h, g> / sum h), h = u (1 - u)."""
        (chosen,) = ctx.saved_tensors
        slope = chosen * (1 - chosen)
        total = slope.sum(-1, keepdim=True).clamp_min(1e-300)
        mean = (slope * grads[0]).sum(-1, keepdim=True) / total
        return slope * (grads[0] - mean), None, None


def project_top_k(scores: Tensor, k: int | Tensor, present: Tensor | None = None) -> Tensor:
    """Inclusion weights in [0, 1] that sum to k per row and follow the scores (Eq. 5).

    Rows with at most k present entries keep them all. Differentiable in the scores.
    """
    if present is None:
        present = torch.ones_like(scores, dtype=torch.bool)
    if isinstance(k, Tensor):
        count = k.double()
    else:  # made on the device: a graph cannot record a copy from the host
        count = torch.full((), k, dtype=torch.float64, device=scores.device)
    project: Callable[..., Tensor] = _Projection.apply
    weights = project(scores.double(), present, count.expand(scores.shape[:-1]))
    return weights.to(scores.dtype)


def sample_by_inclusion(weights: Tensor, draw: Tensor) -> Tensor:
    """Systematic sampling: a mask that holds entry i with probability exactly `weights[i]`.

    `weights` [rows, n] sum to a whole number; `draw` [rows] is uniform in [0, 1). The number kept
    is that sum in every draw.
    """
    edges = weights.double().cumsum(-1)
    total = edges[..., -1:].round()
    edges = torch.minimum(edges * (total / edges[..., -1:].clamp_min(1e-300)), total)
    edges = torch.cat([edges[..., :-1], total], -1)
    before = torch.cat([torch.zeros_like(total), edges[..., :-1]], -1)
    offset = draw[..., None]
    return (edges - offset).ceil() - (before - offset).ceil() > 0.5
