"""The slopes of a refresh: weights of interactions in, relaxed weights after the choice out.

Both masks multiply by the weight, so an interaction of weight 0 has no part in the choice, and yet
a slope. Each function can be differentiated in the scores and in the weights. A high score: keep.
"""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 45.0
"""Beyond this a sigmoid is 0 or 1 in float64."""
STEEP = 80.0
"""Exponents are cut off here: e^80 still is a number in float32."""
HALVINGS, POLISH = 30, 3
"""Bisection brings the level within 1e-6; from there each step of Newton's squares the error."""


def level(scores: Tensor, weight: Tensor, k: float | Tensor) -> Tensor:
    """[..., 1] the nu at which sigmoid(scores + nu), weighted, sums to k (see `topk`).

    By bisection in float64, polished by Newton's iteration; one more step of that makes it
    differentiable.
    """
    logits, mass = scores.double(), weight.double()
    with torch.no_grad():
        low = -logits.amax(-1, keepdim=True) - MARGIN
        high = -logits.amin(-1, keepdim=True) + MARGIN
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            short = (mass * (logits + middle).sigmoid()).sum(-1, keepdim=True) < k
            low, high = torch.where(short, middle, low), torch.where(short, high, middle)
        nu, steepness = (low + high) / 2, torch.ones_like(low)
        for _ in range(POLISH):
            chance = (logits + nu).sigmoid()
            steepness = (mass * chance * (1 - chance)).sum(-1, keepdim=True).clamp_min(1e-300)
            excess = (mass * chance).sum(-1, keepdim=True) - k
            nu = (nu - excess / steepness).clamp(low, high)
    excess = (mass * (logits + nu).sigmoid()).sum(-1, keepdim=True) - k
    return nu - (excess - excess.detach()) / steepness


def keep_k(scores: Tensor, weight: Tensor, k: float) -> Tensor:
    """Weights times their chance to stay, which sum to k: the batch setting (Eq. 5)."""
    nu = level(scores, weight, k)
    return weight * (scores.double() + nu).sigmoid().to(weight.dtype)


def drop_one(scores: Tensor, weight: Tensor) -> Tensor:
    """Weights less their chance to be the one that goes: the online setting (Eq. 4)."""
    lowest = torch.where(weight > 0.5, scores, torch.inf).amin(-1, keepdim=True).detach()
    powers = weight * (lowest - scores).clamp_max(STEEP).exp()
    return weight - powers / powers.sum(-1, keepdim=True)
