"""Recommenders by name. A `RecommenderSpec` of plain values is saved with a run.

`package.module:Class` names a user's own class.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dips.data.side_information import NO_SIDE_INFORMATION, SideInformation
from dips.errors import ConfigError, PluginError, choose_from
from dips.plugins.loading import make_plugin
from dips.recommender.base import Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.gru import GRU
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import make_loss
from dips.recommender.mlp import MLP
from dips.recommender.sasrec import SASRec
from dips.recommender.settings import RecommenderSettings

RECOMMENDERS: dict[str, type[Recommender]] = {
    "dot": DotProduct,
    "mlp": MLP,
    "gru": GRU,
    "sasrec": SASRec,
}
OPTIONS: dict[str, bool] = {
    "repeat_feature": False, "recency_decay": False, "cosine": False, "tie_embeddings": True,
}  # fmt: skip
"""Settings that only some recommenders have, and the value that any recommender accepts."""


@dataclass(frozen=True, kw_only=True)
class RecommenderSpec(RecommenderSettings):
    """Everything that decides the shape of a recommender, and nothing that training changes.

    A field is passed to the constructors that name it; None is not passed.
    """

    kind: str
    """Name in RECOMMENDERS, or `package.module:Class`."""
    loss: str
    """Name of the loss."""
    items: int
    """Number of items."""
    offset: float = 0.0
    """Constant added to the outputs; 0 in runs, whose ratings are centred."""
    rating_center: float = 0.0
    """Mean of the training ratings for squared error, else 0."""
    rating_spread: float = 1.0
    """Standard deviation of the training ratings for squared error, else 1."""
    low: float = 0.0
    """Lowest rating."""
    high: float = 1.0
    """Highest rating."""
    rating_values: tuple[float, ...] = ()
    """The values that a rating can take, for `cce`."""
    side: SideInformation = NO_SIDE_INFORMATION
    """Side information of interactions."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RecommenderSpec:
        """Return the specification that `to_dict` described."""
        side = SideInformation.from_dict(values["side"])
        return cls(**{**values, "rating_values": tuple(values["rating_values"]), "side": side})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plain = {"rating_values": list(self.rating_values), "side": self.side.to_dict()}
        return {**dataclasses.asdict(self), **plain}


def is_own_recommender(kind: str) -> bool:
    """Return whether a name means a user's own class, which `make_recommender` imports."""
    return kind not in RECOMMENDERS and ":" in kind


def make_recommender(spec: RecommenderSpec, seed: int = 0) -> Recommender:
    """Return a new recommender with initial parameters.

    Args:
        spec: Its specification.
        seed: Seed of the initial parameters.

    Raises:
        ConfigError: If the name is unknown, or the recommender lacks an option of the spec.
        PluginError: If a user's own class cannot be made or ignores `items` or `loss`.

    Example:
        >>> model = make_recommender(RecommenderSpec(kind="dot", loss="mse", items=5, dim=2))
        >>> type(model).__name__, tuple(model.vectors.shape)
        ('DotProduct', (5, 2))
    """
    if spec.kind == "dot" and spec.inner_loss == "linearised":
        return construct_recommender(LinearisedDotProduct, spec, seed)
    if spec.kind in RECOMMENDERS:
        return construct_recommender(RECOMMENDERS[spec.kind], spec, seed)
    if not is_own_recommender(spec.kind):
        known = choose_from(spec.kind, RECOMMENDERS)
        raise ConfigError(f"unknown recommender '{spec.kind}': {known}, or package.module:Class")
    settings = settings_of(spec, seed)
    made = make_plugin("recommender", spec.kind, Recommender, seed, settings)  # type: ignore[type-abstract]
    for name in ("items", "loss"):
        if getattr(made, name) != settings[name]:
            raise PluginError(
                f"recommender '{spec.kind}' has {name} {getattr(made, name)}, not the run's "
                f"{settings[name]}: pass its settings to super().__init__"
            )
    made.masks_sketch, made.masks_seen = bool(spec.filter_sketch), spec.filter_seen
    made.rating_center.fill_(spec.rating_center)  # also where `__init__` does not pass them on
    made.rating_spread.fill_(spec.rating_spread)
    return made


def construct_recommender(
    kind: type[Recommender], spec: RecommenderSpec, seed: int = 0
) -> Recommender:
    """Return a new recommender of a class, with the settings that its constructors name.

    A class without a setting `filter_sketch` has the items of the sketch masked in its ranking.

    Args:
        kind: A class of this package.
        spec: Its settings; the field `kind` is ignored.
        seed: Seed of the initial parameters.

    Raises:
        ConfigError: If the spec sets an option that the class does not have.
    """
    settings, named = settings_of(spec, seed), _named_settings(kind)
    for name, neutral in OPTIONS.items():
        if name not in named and settings.get(name, neutral) != neutral:
            raise ConfigError(f"{kind.__name__} has no setting {name}: leave it out")
    made = kind(**{name: value for name, value in settings.items() if name in named})
    made.masks_sketch = bool(spec.filter_sketch) and "filter_sketch" not in named
    made.masks_seen = spec.filter_seen
    return made


def settings_of(spec: RecommenderSpec, seed: int = 0) -> dict[str, Any]:
    """Return the keyword arguments for constructors: all fields, the loss and a generator.

    A user's own class gets those that its `__init__` names; with `**settings`, also those of
    `Recommender.__init__`.
    """
    values = ((field.name, getattr(spec, field.name)) for field in dataclasses.fields(spec))
    negatives = spec.negatives or 0
    return {
        **{name: value for name, value in values if value is not None},
        "loss": make_loss(spec.loss, spec.low, spec.high, spec.rating_values, negatives),
        "generator": torch.Generator().manual_seed(seed),
    }


def _named_settings(kind: type) -> set[str]:
    """Return the parameters of a class's `__init__` and of those it passes `**settings` to."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            names |= {entry.name for entry in parameters}
            if not any(entry.kind is entry.VAR_KEYWORD for entry in parameters):
                break
    return names
