"""Recommenders in float64 whose vectors matter, and sketches with something to predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender
from dips.recommender.losses import Loss
from dips.recommender.ncf import DotProduct, Perceptron


class Case(NamedTuple):
    """Sketches, what they predict, and interactions that are not in them."""

    evidence: Evidence
    item: Tensor
    rating: Tensor
    others: Tensor
    other_ratings: Tensor


@pytest.fixture
def make(dot: Callable[..., DotProduct], losses: dict[str, Loss]) -> Callable[..., Recommender]:
    """`make("dot" or "mlp", loss, **settings)`: a recommender of 8 items in float64."""

    def build(kind: str, loss: str, seed: int = 0, **settings: float) -> Recommender:
        if kind == "dot":
            model: Recommender = dot(losses[loss], seed=seed, **settings)
        else:
            generator = torch.Generator().manual_seed(seed)
            model = Perceptron(
                items=8,
                loss=losses[loss],
                dim=5,
                offset=0.0 if loss == "softmax" else 0.4,
                generator=generator,
                **settings,  # type: ignore[arg-type]
            )
        return model.double().requires_grad_(False)

    return build


@pytest.fixture
def case() -> Callable[..., Case]:
    """`case(rows, n)`: weighted sketches of n entries, one of them weightless."""

    def build(rows: int = 5, n: int = 3, items: int = 8, seed: int = 0) -> Case:
        generator = torch.Generator().manual_seed(seed)
        item = torch.randint(items, (rows, n + 5), generator=generator)
        rating = torch.randint(1, 6, (rows, n + 5), generator=generator).double()
        weight = torch.rand(rows, n, generator=generator).double() + 0.1
        weight[0, -1] = 0.0
        weight[1] = 0.0
        slots = torch.full((rows,), 6)
        return Case(
            Evidence(item[:, :n], rating[:, :n], weight, slots),
            item[:, n],
            rating[:, n],
            item[:, n + 1 :],
            rating[:, n + 1 :],
        )

    return build
