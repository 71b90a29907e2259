"""Recommenders by name, described by plain values so that a run can be written and opened again.

A dictionary, and `package.module:Class` for a user's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dips.data.side_information import NOTHING, SideInformation
from dips.errors import ConfigError, PluginError
from dips.plugins.loading import make_plugin
from dips.recommender.base import Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.gru import GRU
from dips.recommender.losses import make_loss
from dips.recommender.mlp import MLP
from dips.recommender.sasrec import SASRec

FORMS: dict[str, Callable[..., Recommender]] = {
    "dot": DotProduct,
    "mlp": MLP,
    "gru": GRU,
    "gru-separate": partial(GRU, tied=False),
    "sasrec": SASRec,
}

IN_ORDER = ("gru", "gru-separate", "sasrec")
"""Those that read in order, and learn how far down goes what they strike out."""
PARTS = ("repeat_feature", "recency_decay", "separate_input", "cosine")
"""What a recommender has, or has not."""


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
    inner_lr: float = 0.1
    inner_steps: int = 10
    prior_penalty: float = 0.0
    negatives: int = 0
    repeat_feature: bool = False
    recency_decay: bool = False
    separate_input: bool = False
    filter_sketch: bool = False
    cosine: bool = False
    side: SideInformation = NOTHING

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RecommenderSpec:
        """From what `to_dict` gave."""
        side = SideInformation.from_dict(values.get("side", {}))
        return cls(**{**values, "stars": tuple(values["stars"]), "side": side})

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        side = self.side.to_dict()
        return {**dataclasses.asdict(self), "stars": list(self.stars), "side": side}


def make_recommender(spec: RecommenderSpec, seed: int = 0) -> Recommender:
    """A fresh recommender; the seed decides where it starts."""
    settings = settings_of(spec, seed)
    settings |= {name: True for name in PARTS if getattr(spec, name)}
    if spec.form in IN_ORDER:
        return FORMS[spec.form](**settings, filter_sketch=spec.filter_sketch, sides=spec.side)
    made = _made(spec, seed, settings)
    made.filters_sketch = spec.filter_sketch  # by the ranking: they need not know
    return made


def _made(spec: RecommenderSpec, seed: int, settings: Mapping[str, Any]) -> Recommender:
    """One of ours, or of the user's own."""
    if spec.form in FORMS:
        return FORMS[spec.form](**settings, sides=spec.side)
    if ":" not in spec.form:
        known = ", ".join(FORMS)
        raise ConfigError(
            f"unknown recommender '{spec.form}': choose one of {known}, or package.module:Class"
        )
    made = make_plugin("recommender", spec.form, Recommender, seed, settings)  # type: ignore[type-abstract]
    for name in ("items", "loss"):
        if getattr(made, name) != settings[name]:
            raise PluginError(
                f"recommender '{spec.form}' has {name} {getattr(made, name)}, not the run's "
                f"{settings[name]}: hand what it is given to super().__init__"
            )
    return made


def settings_of(spec: RecommenderSpec, seed: int = 0) -> dict[str, Any]:
    """What a recommender is made with.

    A class of the user's own is given what its `__init__` names, and with `**settings` all that
    `Recommender.__init__` names.
    """
    return {
        "items": spec.items,
        "loss": make_loss(spec.loss, spec.low, spec.high, spec.stars, spec.negatives),
        "dim": spec.dim,
        "offset": spec.offset,
        "inner_lr": spec.inner_lr,
        "inner_steps": spec.inner_steps,
        "prior_penalty": spec.prior_penalty,
        "generator": torch.Generator().manual_seed(seed),
    }


def embedding_width(spec: RecommenderSpec) -> int:
    """How many numbers a policy sees of an item: the dimensions, or what a user's own gives."""
    if spec.form in FORMS:
        return spec.dim
    return make_recommender(spec).embedding(torch.zeros(1, 1, dtype=torch.int64)).shape[-1]
