"""Choosing K of n: the Top-K projection (Eq. 5) and exact sampling from it (Eq. 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dips.numerics.relaxation import top_k_multiplier


class _Projection(torch.autograd.Function):
    """u = sigmoid(f + nu) with sum u = k; the KKT conditions give its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, present: Tensor, k: Tensor) -> Tensor:
        """Return u for scores [..., n] in float64."""
        logits = scores.masked_fill(~present, 0.0)
        nu = top_k_multiplier(logits, present, k[..., None])
        chosen = torch.where(present, (logits + nu).sigmoid(), 0.0)
        full = present.sum(-1, keepdim=True) <= k[..., None]
        return torch.where(full, present.double(), chosen)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Save the output: the derivative is a function of it."""
        del inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return h (g - <h, g> / sum h) with h = u (1 - u)."""
        (chosen,) = ctx.saved_tensors
        slope = chosen * (1 - chosen)
        total = slope.sum(-1, keepdim=True).clamp_min(1e-300)
        mean = (slope * grads[0]).sum(-1, keepdim=True) / total
        return slope * (grads[0] - mean), None, None


def project_top_k(scores: Tensor, k: int | Tensor, present: Tensor | None = None) -> Tensor:
    """Return the Top-K projection mu(f) of Eq. 5: inclusion probabilities that sum to k.

    Args:
        scores: f, [..., n]; high means keep.
        k: Entries to keep, one number or [...].
        present: Which slots hold an entry, [..., n]; all if None.

    Returns:
        Probabilities [..., n], differentiable in the scores. Rows with at most k present entries
        keep them all.
    """
    if present is None:
        present = torch.ones_like(scores, dtype=torch.bool)
    if isinstance(k, Tensor):
        count = k.double()
    else:  # created on the device: a CUDA graph cannot capture a copy from the host
        count = torch.full((), k, dtype=torch.float64, device=scores.device)
    project: Callable[..., Tensor] = _Projection.apply
    weights = project(scores.double(), present, count.expand(scores.shape[:-1]))
    return weights.to(scores.dtype)


def sample_by_inclusion(weights: Tensor, draw: Tensor) -> Tensor:
    """Return a random mask that keeps entry i with probability exactly `weights[i]` (Eq. 6).

    Args:
        weights: Inclusion probabilities, [rows, n]; each row sums to a whole number.
        draw: Uniform random numbers in [0, 1), [rows].

    Returns:
        Mask [rows, n] by systematic sampling. It always keeps as many entries as the row's sum.
    """
    edges = weights.double().cumsum(-1)
    total = edges[..., -1:].round()
    edges = torch.minimum(edges * (total / edges[..., -1:].clamp_min(1e-300)), total)
    edges = torch.cat([edges[..., :-1], total], -1)
    before = torch.cat([torch.zeros_like(total), edges[..., :-1]], -1)
    offset = draw[..., None]
    return (edges - offset).ceil() - (before - offset).ceil() > 0.5
