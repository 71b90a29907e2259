"""Relaxed refreshes: entry weights in, relaxed entry weights after the choice out.

Weights mask by multiplication: an entry of weight 0 has no part in the choice, but has a slope.
Both functions are differentiable in scores and weights. A high score means keep.
"""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 45.0
"""Logits beyond this have a sigmoid of 0 or 1 in float64."""
MAX_EXPONENT = 80.0
"""Exponents are clamped here: exp(80) is finite in float32."""
BISECTION_STEPS, NEWTON_STEPS = 30, 3
"""Bisection reaches an error of 1e-6; each Newton step then squares it."""


def top_k_multiplier(scores: Tensor, weight: Tensor, k: float | Tensor) -> Tensor:
    """Return nu for which weight * sigmoid(scores + nu) sums to k: the multiplier of Eq. 5.

    It is computed by bisection and Newton steps in float64. One more Newton step makes it
    differentiable.

    Args:
        scores: [..., n]
        weight: Entry weights, [..., n].
        k: Sum of the kept weights.

    Returns:
        [..., 1]
    """
    logits, mass = scores.double(), weight.double()
    with torch.no_grad():
        low = -logits.amax(-1, keepdim=True) - MARGIN
        high = -logits.amin(-1, keepdim=True) + MARGIN
        for _ in range(BISECTION_STEPS):
            middle = (low + high) / 2
            short = (mass * (logits + middle).sigmoid()).sum(-1, keepdim=True) < k
            low, high = torch.where(short, middle, low), torch.where(short, high, middle)
        nu, slope = (low + high) / 2, torch.ones_like(low)
        for _ in range(NEWTON_STEPS):
            kept = (logits + nu).sigmoid()
            slope = (mass * kept * (1 - kept)).sum(-1, keepdim=True).clamp_min(1e-300)
            excess = (mass * kept).sum(-1, keepdim=True) - k
            nu = (nu - excess / slope).clamp(low, high)
    excess = (mass * (logits + nu).sigmoid()).sum(-1, keepdim=True) - k
    return nu - (excess - excess.detach()) / slope


def keep_k(scores: Tensor, weight: Tensor, k: float) -> Tensor:
    """Return weights times keep probabilities, which sum to k: the batch setting (Eqs. 5 and 6)."""
    nu = top_k_multiplier(scores, weight, k)
    return weight * (scores.double() + nu).sigmoid().to(weight.dtype)


def drop_one(scores: Tensor, weight: Tensor) -> Tensor:
    """Return weights minus removal probabilities: the online setting (Eq. 4)."""
    lowest = torch.where(weight > 0.5, scores, torch.inf).amin(-1, keepdim=True).detach()
    powers = weight * (lowest - scores).clamp_max(MAX_EXPONENT).exp()
    return weight - powers / powers.sum(-1, keepdim=True)
