"""Recommenders in float64 whose vectors matter, and sketches with something to predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.mlp import MLP


class Case(NamedTuple):
    """Sketches, what they predict, and interactions that are not in them."""

    evidence: Evidence
    item: Tensor
    rating: Tensor
    others: Tensor
    other_ratings: Tensor
    other_ages: Tensor
    other_repeats: Tensor


@pytest.fixture
def make(dot: Callable[..., DotProduct], losses: dict[str, Loss]) -> Callable[..., Recommender]:
    """`make("dot", "returning", "fading", "telling", "striking" or "mlp", loss, ...)`.

    Of 8 items, 9 where they are struck out; in float64.
    """

    def build(kind: str, loss: str, seed: int = 0, **settings: float) -> Recommender:
        if kind != "mlp":
            more = {"dot": {}, "filter_sketch": {"recency_decay": True, "items": 9}}.get(
                kind, {kind: True}
            )
            model: Recommender = dot(losses[loss], seed=seed, **more, **settings)
            model.filters_sketch = kind == "filter_sketch"
        else:
            generator = torch.Generator().manual_seed(seed)
            model = MLP(
                items=8,
                loss=losses[loss],
                dim=5,
                offset=0.0 if loss == "softmax" else 0.4,
                generator=generator,
                **settings,  # type: ignore[arg-type]
            )
        return model.double().requires_grad_(False)

    return build


def _often(rows: int, n: int, seed: int) -> Tensor:
    """How often interactions were met."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 6, (rows, n), generator=generator).double()


@pytest.fixture
def case() -> Callable[..., Case]:
    """`case(rows, n)`: weighted sketches of n entries, one of them weightless.

    Items may come twice, unless they are `distinct`.
    """

    def build(
        rows: int = 5, n: int = 3, items: int = 8, seed: int = 0, *, distinct: bool = False
    ) -> Case:
        generator = torch.Generator().manual_seed(seed)
        item = torch.randint(items, (rows, n + 5), generator=generator)
        if distinct:
            item = torch.rand(rows, items, generator=generator).argsort(1)[:, : n + 5]
        rating = torch.randint(1, 6, (rows, n + 5), generator=generator).double()
        weight = torch.rand(rows, n, generator=generator).double() * 0.9 + 0.1
        weight[0, -1] = 0.0
        weight[1] = 0.0
        slots = torch.full((rows,), 6)
        age = torch.randint(20, (rows, n), generator=generator).double()
        return Case(
            Evidence(item[:, :n], rating[:, :n], weight, slots, age, _often(rows, n, seed)),
            item[:, n],
            rating[:, n],
            item[:, n + 1 :],
            rating[:, n + 1 :],
            torch.randint(20, (rows, 4), generator=generator).double(),
            _often(rows, 4, seed + 1),
        )

    return build
