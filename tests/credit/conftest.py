"""Recommenders in float64, and weighted sketches with an interaction to predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.gru import GRU
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import Loss, SampledSoftmax
from dips.recommender.mlp import MLP
from dips.recommender.sasrec import SASRec


class Case(NamedTuple):
    """Sketches, the interactions to predict, and interactions outside the sketches."""

    evidence: Evidence
    item: Tensor
    rating: Tensor
    others: Evidence


SCALE = {"mse": {"rating_center": 2.9, "rating_spread": 1.3}}
"""Unit of ratings, by loss."""


@pytest.fixture
def make(
    dot: Callable[..., DotProduct],
    linearised: Callable[..., LinearisedDotProduct],
    losses: dict[str, Loss],
) -> Callable[..., Recommender]:
    """Return `make(kind, loss, ...)`: a recommender of 8 items in float64.

    The kind is "dot", "mlp", or a feature of the dot product: "repeat_feature", "recency_decay",
    "untied" or "filter_sketch" (with 9 items). With the prefix "linearised-" it is a feature of
    the dot product with a linearised inner loop (9 items with a repeat feature); "linearised" has
    no feature. The loss "sampled" is a softmax over 5 negatives. "gru" and "sasrec" read in order;
    with the suffix "-repeat_feature", "-filter_sketch" or "-cosine" they have this feature, and 9
    items.
    """

    def build(kind: str, loss: str, seed: int = 0, **settings: float) -> Recommender:
        known: dict[str, Loss] = {**losses, "sampled": SampledSoftmax(5)}
        if kind.startswith(("gru", "sasrec")):
            return _sequential(kind, known[loss], seed)
        if kind != "mlp":
            special: dict[str, dict[str, Any]] = {
                "dot": {},
                "untied": {"tie_embeddings": False},
                "filter_sketch": {"recency_decay": True, "items": 9},
            }
            first, _, name = kind.partition("-")
            form = linearised if first == "linearised" else dot
            feature = (name or "dot") if first == "linearised" else kind
            more = special.get(feature, {feature: True})
            if kind == "linearised-repeat_feature":
                more = {**more, "items": 9}
            model: Recommender = form(
                known[loss], seed=seed, **more, **SCALE.get(loss, {}), **settings
            )
            model.masks_sketch = feature == "filter_sketch"
            if loss == "sampled":
                model.log_q.copy_(torch.linspace(-0.8, 0.2, 5))
        else:
            generator = torch.Generator().manual_seed(seed)
            model = MLP(
                items=8,
                loss=known[loss],
                dim=5,
                offset=0.0 if loss == "softmax" else 0.4,
                **SCALE.get(loss, {}),
                generator=generator,
                **settings,  # type: ignore[arg-type]
            )
        return model.double().requires_grad_(False)

    return build


def _sequential(kind: str, loss: Loss, seed: int) -> Recommender:
    """Return a recommender that reads in order, whose parameters are all far from zero."""
    name, _, feature = kind.partition("-")
    generator = torch.Generator().manual_seed(seed)
    form, more = {"gru": GRU, "sasrec": SASRec}[name], {feature: True} if feature else {}
    items = 9 if feature else 8
    model = form(items=items, loss=loss, dim=5, generator=generator, **more).double()
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter += torch.randn(parameter.shape, generator=generator) / 3
    return model


def _repeats(rows: int, n: int, seed: int) -> Tensor:
    """Return random repeat counts."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 6, (rows, n), generator=generator).double()


@pytest.fixture
def case() -> Callable[..., Case]:
    """Return `case(rows, n)`: weighted sketches of n entries, some of weight 0.

    Items may repeat, unless they are `distinct`.
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
            Evidence(item[:, :n], rating[:, :n], weight, slots, age, _repeats(rows, n, seed)),
            item[:, n],
            rating[:, n],
            Evidence(
                item[:, n + 1 :],
                rating[:, n + 1 :],
                torch.zeros(rows, 4).double(),
                slots,
                torch.randint(20, (rows, 4), generator=generator).double(),
                _repeats(rows, 4, seed + 1),
            ),
        )

    return build
