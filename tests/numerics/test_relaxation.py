"""Relaxed refreshes: values equal Top-K projection and softmax; gradients pass gradcheck."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from dips.numerics.relaxation import drop_one, keep_k, top_k_multiplier
from dips.numerics.topk import project_top_k

ROWS, WIDTH, K = 4, 7, 3


def _case(seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator) * scale
    weight = torch.ones_like(scores)
    weight[1, 2], weight[2, :3] = 0.0, 0.0
    scores[1, 2] = -4 * scale  # an entry of weight 0 has the lowest score
    return scores, weight


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_values_are_those_of_the_projection_and_the_softmax(scale: float) -> None:
    scores, weight = _case(scale=scale)
    kept = keep_k(scores, weight, K)
    torch.testing.assert_close(kept, project_top_k(scores, K, weight > 0), atol=1e-12, rtol=0)
    probability = (-scores).masked_fill(weight == 0, -torch.inf).softmax(1)
    torch.testing.assert_close(drop_one(scores, weight), weight - probability, atol=1e-12, rtol=0)
    assert bool((kept[weight == 0] == 0).all())


def test_the_multiplier_balances_fractional_weights() -> None:
    scores, _ = _case()
    weight = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).double() + 0.5
    total = (weight * (scores + top_k_multiplier(scores, weight, K)).sigmoid()).sum(1)
    torch.testing.assert_close(total, torch.full((ROWS,), float(K)).double())


def test_gradients_in_scores_and_weights() -> None:
    """Weights of 0 have gradients too."""
    scores, weight = (field.requires_grad_() for field in _case())
    assert gradcheck(lambda s, w: keep_k(s, w, K), (scores, weight))
    assert gradcheck(drop_one, (scores, weight))
    (slope,) = torch.autograd.grad(keep_k(scores, weight, K)[2, 1], weight)
    assert float(slope[2, 1]) > 0.1


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_single_precision_and_stacks(scale: float) -> None:
    scores, weight = _case(scale=scale)
    for function in (drop_one, lambda s, w: keep_k(s, w, K)):
        exact = function(scores, weight)
        single = [field.float().requires_grad_() for field in (scores, weight)]
        value = function(*single)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact, atol=1e-4, rtol=1e-4)
        slopes = torch.autograd.grad((value * scores.float()).sum(), single)
        assert all(bool(slope.isfinite().all()) for slope in slopes)
        pair = [torch.stack([field, field.flip(0)]) for field in (scores, weight)]
        together = torch.func.vmap(function)(*pair)
        torch.testing.assert_close(together, torch.stack([exact, exact.flip(0)]))
