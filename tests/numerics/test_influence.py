"""Influence functions against dense solvers and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dips.numerics import influence
from dips.numerics.influence import (
    covariance,
    influences,
    linear_influences,
    solve,
    solve_dense,
)


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _dense(rows: Tensor, damping: float) -> Tensor:
    return rows.transpose(1, 2) @ rows + damping * torch.eye(rows.shape[2]).double()


@pytest.mark.parametrize("damping", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_conjugate_gradients_equal_a_dense_solver(rank: int, damping: float) -> None:
    features, target = _random(5, rank, 8, seed=1), _random(5, 8, seed=2)

    def product(vector: Tensor) -> Tensor:
        return (features.transpose(1, 2) @ (features @ vector[:, :, None]))[:, :, 0]

    expected = torch.linalg.solve(_dense(features, damping), target)
    torch.testing.assert_close(solve(product, target, damping, rank + 1), expected)
    # rows that have converged stand still, however long the others take
    torch.testing.assert_close(solve(product, target, damping, 60), expected)


def test_zero_target_or_zero_hessian() -> None:
    nothing = solve(lambda v: v * 0, torch.zeros(2, 4).double(), 0.5, 5)
    assert torch.equal(nothing, torch.zeros(2, 4).double())
    target = _random(2, 4, seed=3)
    torch.testing.assert_close(solve(lambda v: v * 0, target, 0.5, 3), target * 2)


def test_influences_are_derivatives_at_the_optimum() -> None:
    """d (fixed sum of losses) / d weight at a weighted minimum, by finite differences.

    At the minimum of the penalised loss with weights w, the loss of all counted by w.
    """
    features, rating, damping = _random(1, 5, 3, seed=4), _random(1, 5, seed=5), 0.7
    weight = torch.tensor([[1.0, 0.5, 0.0, 2.0, 1.0]]).double()

    def optimum(weight: Tensor) -> Tensor:
        normal = 2 * (features * weight[:, :, None]).transpose(1, 2) @ features
        right = 2 * (features * (weight * rating)[:, :, None]).sum(1)
        return torch.linalg.solve(normal + damping * torch.eye(3).double(), right)

    def total(user: Tensor) -> float:
        return float((weight * ((features @ user[:, :, None])[:, :, 0] - rating) ** 2).sum())

    user = optimum(weight)
    error = (features @ user[:, :, None])[:, :, 0] - rating
    dense = 2 * (features * weight[:, :, None]).transpose(1, 2) @ features
    gradients = 2 * error[:, :, None] * features
    mine = influences(
        gradients,
        (gradients * weight[:, :, None]).sum(1),
        lambda v: (dense @ v[:, :, None])[:, :, 0],
        damping,
        9,
    )
    for place, step in enumerate(torch.eye(5).double()[:, None] * 1e-6):
        moved = (total(optimum(weight + step)) - total(optimum(weight - step))) / 2e-6
        assert moved == pytest.approx(float(mine[0, place]), rel=1e-5)


@pytest.mark.parametrize(("n", "dim"), [(3, 8), (6, 4), (1, 5)])
@pytest.mark.parametrize("damping", [0.01, 1.0, 30.0])
def test_the_gram_form_equals_the_dense_form(n: int, dim: int, damping: float) -> None:
    features, slope = _random(7, n, dim, seed=1), _random(7, n, seed=2)
    curvature, weight = _random(7, n, seed=3).abs(), (_random(7, n, seed=4) > -0.5).double()
    hessian = (features * (weight * curvature)[:, :, None]).transpose(1, 2) @ features
    hessian = hessian + damping * torch.eye(dim).double()
    gradients = slope[:, :, None] * features
    total = (gradients * weight[:, :, None]).sum(1)
    expected = -(gradients @ torch.linalg.solve(hessian, total)[:, :, None])[:, :, 0]
    mine = linear_influences(features, slope, curvature, weight, damping)
    torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_elimination_equals_a_dense_solver(n: int) -> None:
    rows, target = _random(6, n, n, seed=1), _random(6, n, seed=2)
    positive = rows @ rows.transpose(1, 2)
    curvature = _random(6, n, seed=3).abs()
    curvature[0] = 0.0
    for matrix in (positive, curvature[:, :, None] * positive):
        expected = torch.linalg.solve(matrix + 0.4 * torch.eye(n).double(), target)
        torch.testing.assert_close(solve_dense(matrix, 0.4, target), expected)


def test_covariance_equals_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(influence, "CHUNK_ITEMS", 4)  # 10 items: two whole chunks and a part
    probability = _random(3, 10, seed=0).softmax(1)
    table = _random(10, 5, seed=1)
    for row, mine in zip(probability, covariance(probability, table), strict=True):
        away = table - row @ table
        torch.testing.assert_close(mine, (away.T * row) @ away)
