"""Recommenders by name, described by plain values so that a run can be written and opened again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dips.errors import ConfigError
from dips.recommender.base import Recommender
from dips.recommender.losses import make_loss
from dips.recommender.ncf import DotProduct, Perceptron

FORMS = {"dot": DotProduct, "mlp": Perceptron}


@dataclass(frozen=True, kw_only=True)
class RecommenderSpec:
    """Everything that decides a recommender's shape, and nothing that training changes."""

    form: str
    loss: str
    items: int
    dim: int = 32
    offset: float = 0.0
    low: float = 0.0
    high: float = 1.0
    stars: tuple[float, ...] = ()
    inner_rate: float = 0.1
    inner_steps: int = 10
    inner_pull: float = 0.0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RecommenderSpec:
        """From what `to_dict` gave."""
        return cls(**{**values, "stars": tuple(values["stars"])})

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "stars": list(self.stars)}


def make_recommender(spec: RecommenderSpec, seed: int = 0) -> Recommender:
    """A fresh recommender; the seed decides where it starts."""
    if spec.form not in FORMS:
        raise ConfigError(f"unknown recommender '{spec.form}': choose one of {', '.join(FORMS)}")
    return FORMS[spec.form](
        items=spec.items,
        loss=make_loss(spec.loss, spec.low, spec.high, spec.stars),
        dim=spec.dim,
        offset=spec.offset,
        inner_rate=spec.inner_rate,
        inner_steps=spec.inner_steps,
        inner_pull=spec.inner_pull,
        generator=torch.Generator().manual_seed(seed),
    )
