"""The Top-K projection against a root finder, its gradient against differences, its samples."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq, minimize
from scipy.special import expit, xlogy
from torch import Tensor
from torch.autograd import gradcheck

from dips.numerics.topk import project_top_k, sample_by_inclusion

rows = arrays(np.float64, (3, 7), elements=st.floats(-50, 50, allow_subnormal=False))


def _by_root(scores: np.ndarray, k: int) -> np.ndarray:
    """u = sigmoid(f + nu), nu by Brent's method on one row."""
    if k >= len(scores):
        return np.ones(len(scores))
    low, high = -scores.max() - 60, -scores.min() + 60
    nu = brentq(lambda n: expit(scores + n).sum() - k, low, high, xtol=1e-14, rtol=1e-14)
    return expit(scores + nu)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(rows, st.integers(1, 6))
def test_sums_to_k_keeps_order_and_equals_the_root_finder(scores: np.ndarray, k: int) -> None:
    weights = project_top_k(torch.from_numpy(scores), k)
    assert bool(((weights >= 0) & (weights <= 1)).all())
    torch.testing.assert_close(weights.sum(1), torch.full((3,), float(k)).double())
    for row, weight in zip(scores, weights.numpy(), strict=True):
        assert (np.diff(weight[np.argsort(row)]) >= -1e-15).all()
        np.testing.assert_allclose(weight, _by_root(row, k), atol=1e-9)


def test_solves_the_convex_problem_of_equation_5() -> None:
    """argmin -f'u - H(u) subject to sum u = k, by a general solver."""
    scores, k = _random(6, seed=1).numpy() * 2, 2

    def cost(u: np.ndarray) -> float:
        return float(-scores @ u + (xlogy(u, u) + xlogy(1 - u, 1 - u)).sum())

    found = minimize(
        cost,
        np.full(6, k / 6),
        bounds=[(1e-9, 1 - 1e-9)] * 6,
        constraints={"type": "eq", "fun": lambda u: u.sum() - k},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success
    mine = project_top_k(torch.from_numpy(scores), k).numpy()
    np.testing.assert_allclose(mine, found.x, atol=1e-5)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_gradient(k: int) -> None:
    scores = _random(4, 7).requires_grad_()
    assert gradcheck(partial(project_top_k, k=k), scores)
    present = torch.ones(4, 7, dtype=torch.bool)
    present[1, 2:4], present[2, 5] = False, False
    assert gradcheck(lambda s: project_top_k(s, k, present), scores)


def test_gradient_is_zero_where_all_are_kept_and_in_empty_slots() -> None:
    scores = _random(2, 4).requires_grad_()
    present = torch.tensor([[True, True, False, False], [True, True, True, False]])
    (project_top_k(scores, 2, present) * _random(2, 4, seed=2)).sum().backward()
    assert scores.grad is not None
    assert bool((scores.grad[0] == 0).all())
    assert bool((scores.grad[1, :3] != 0).all())
    assert float(scores.grad[1, 3]) == 0
    assert abs(float(scores.grad[1].sum())) < 1e-12  # a common shift changes nothing


@pytest.mark.parametrize("scale", [1e3, 1e4, 1e5, 1e6])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_extreme_scores_choose_the_largest(scale: float, k: int) -> None:
    scores = torch.tensor([-1.0, 1.0, 0.5, -0.2, 0.9, 0.1, -0.7]).double() * scale
    weights = project_top_k(scores[None], k)[0]
    expected = torch.zeros(7).double()
    expected[scores.argsort(descending=True)[:k]] = 1
    torch.testing.assert_close(weights, expected)
    far = torch.tensor([[scale, -scale, -scale, -scale]]).double()  # one is certain, the rest tied
    torch.testing.assert_close(
        project_top_k(far, 2), torch.tensor([[1.0, 1 / 3, 1 / 3, 1 / 3]]).double()
    )


def test_ties_share_evenly() -> None:
    for value in (0.0, 7.5, -1e6, 1e6):
        weights = project_top_k(torch.full((1, 5), value).double(), 2)
        torch.testing.assert_close(weights, torch.full((1, 5), 0.4).double(), atol=1e-8, rtol=0)


def test_as_many_as_there_are_or_more() -> None:
    scores = _random(2, 4)
    present = torch.tensor([[True, False, True, False], [True, True, True, True]])
    for k in (4, 5, 100):
        assert torch.equal(project_top_k(scores, k, present), present.double())
    assert torch.equal(project_top_k(scores, 2, present)[0], present[0].double())


def test_empty_slots_do_not_matter() -> None:
    scores = _random(5, 7)
    present = _random(5, 7, seed=3) > -0.5
    weights = project_top_k(scores, 2, present)
    assert bool((weights[~present] == 0).all())
    littered = scores.masked_fill(~present, 1e6)
    assert torch.equal(project_top_k(littered, 2, present), weights)
    for row in range(5):
        single = project_top_k(scores[row][present[row]][None], 2)[0]
        torch.testing.assert_close(weights[row][present[row]], single)


def test_k_may_differ_by_row() -> None:
    scores, k = _random(3, 6), torch.tensor([1, 4, 6])
    weights = project_top_k(scores, k)
    for row in range(3):
        single = project_top_k(scores[row : row + 1], int(k[row]))
        torch.testing.assert_close(weights[row : row + 1], single)


def test_float32_is_float64_rounded() -> None:
    scores = _random(50, 9).float().requires_grad_()
    weights = project_top_k(scores, 3)
    assert weights.dtype == torch.float32
    assert torch.equal(weights, project_top_k(scores.detach().double(), 3).float())
    exact = scores.detach().double().requires_grad_()
    direction = _random(50, 9, seed=4)
    (project_top_k(exact, 3) * direction.float().double()).sum().backward()
    (weights * direction.float()).sum().backward()
    assert scores.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(scores.grad, exact.grad.float())


@given(rows, st.integers(1, 6))
def test_samples_hold_k_and_follow_the_weights(scores: np.ndarray, k: int) -> None:
    """Over a fine grid of random numbers, shares equal the probabilities up to its width."""
    weights = project_top_k(torch.from_numpy(scores[:1]), k)
    grid = 2000
    uniform = (torch.arange(grid).double() + 0.5) / grid
    kept = sample_by_inclusion(weights.expand(grid, -1), uniform)
    assert bool((kept.sum(1) == k).all())
    share = kept.double().mean(0)
    assert float((share - weights[0]).abs().max()) <= 1.01 / grid + 1e-9


def test_sampling_at_the_edges_of_the_draw() -> None:
    weights = project_top_k(_random(200, 6), 3)
    for draw in (0.0, 2.0**-53, 0.5, 1 - 2.0**-53):
        kept = sample_by_inclusion(weights, torch.full((200,), draw).double())
        assert bool((kept.sum(1) == 3).all())
    sure = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    for draw in (0.0, 0.3, 1 - 2.0**-53):
        kept = sample_by_inclusion(sure, torch.tensor([draw]).double())
        assert kept.tolist() == [[True, False, True, False]]
    nothing = sample_by_inclusion(torch.zeros(1, 4), torch.tensor([0.3]).double())
    assert not bool(nothing.any())
