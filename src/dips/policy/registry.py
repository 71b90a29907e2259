"""Policies by name, described by plain values so that a run can be written and opened again.

A dictionary, and `package.module:Class` for a user's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dips.data.side_information import NOTHING, SideInformation
from dips.errors import ConfigError
from dips.plugins.loading import make_plugin
from dips.policy.base import Policy
from dips.policy.frequency import Frequent
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.last_top import LastTop
from dips.policy.network import PaperNetwork
from dips.policy.recency import KeepAll, Last, LastDistinct
from dips.policy.reservoir import Mix, Reservoir
from dips.policy.set_network import SetNetwork

NEWEST = 4
"""Where `learned` has a predicted_score, and room for more than these, they almost always stay at first."""


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """Everything that decides a policy's shape, and nothing that training changes."""

    name: str
    size: int
    damping: float = 1.0
    items: int = 1
    dim: int = 0
    residual: bool = True
    predicted_score: bool = False
    repeat_feature: bool = False
    center: float = 0.0
    spread: float = 1.0
    dropout: float = 0.1
    side: SideInformation = NOTHING

    @property
    def argument(self) -> str | None:
        """What stands behind the colon of the name."""
        return self.name.partition(":")[2] or None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PolicySpec:
        """From what `to_dict` gave."""
        return cls(**{**values, "side": SideInformation.from_dict(values.get("side", {}))})

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "side": self.side.to_dict()}


def _number(name: str, text: str | None, meaning: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"policy '{name}:{text}': {meaning} must be a number") from None


def _newest(name: str, spec: PolicySpec, others: str) -> int:
    """How many of the newest stay; there has to be a slot for others."""
    newest = _number(name, spec.argument, "the number of newest")
    if newest is None or not newest.is_integer():
        raise ConfigError(f"policy '{name}' needs a whole number of newest, for example {name}:2")
    if newest >= spec.size:
        raise ConfigError(f"{name}:{int(newest)} leaves no slot {others} at size {spec.size}")
    return int(newest)


def _paper(spec: PolicySpec, seed: int) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    return PaperNetwork(
        items=spec.items, dropout=spec.dropout, sides=spec.side, generator=generator
    )


def _slope(spec: PolicySpec) -> float:
    """What each newer candidate costs at first."""
    if spec.predicted_score and spec.size > NEWEST:
        return 0.0
    return 0.5 / spec.size if spec.repeat_feature else 1.0


def _learned(spec: PolicySpec, seed: int) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    return SetNetwork(
        dim=spec.dim,
        center=spec.center,
        spread=spec.spread,
        items=spec.items,
        residual=spec.residual,
        predicted_score=spec.predicted_score,
        repeat_feature=spec.repeat_feature,
        slope=_slope(spec),
        newest=NEWEST if spec.predicted_score and spec.size > NEWEST else 0,
        sides=spec.side,
        generator=generator,
    )


POLICIES: dict[str, Callable[[PolicySpec, int], Policy]] = {
    "last": lambda spec, seed: Last(),
    "reservoir": lambda spec, seed: Reservoir(),
    "hardest": lambda spec, seed: Hardest(_number("hardest", spec.argument, "the half-life")),
    "influence": lambda spec, seed: Influence(
        spec.size, spec.damping, _number("influence", spec.argument, "the half-life")
    ),
    "mix": lambda spec, seed: Mix(_newest("mix", spec, "to sample")),
    "last-top": lambda spec, seed: LastTop(_newest("last-top", spec, "for predicted scores")),
    "last-distinct": lambda spec, seed: LastDistinct(),
    "frequent": lambda spec, seed: Frequent(),
    "all": lambda spec, seed: KeepAll(),
    "dips": _paper,
    "dips@1": _paper,
    "learned": _learned,
}
WITH_ARGUMENT = {"hardest": "HALFLIFE", "influence": "HALFLIFE", "mix": "M", "last-top": "M"}


def make_policy(name: str, *, seed: int = 0, **shape: Any) -> Policy:
    """The policy of this name: `last`, `mix:2`, `hardest:20`, or `package.module:Class`.

    `shape` are the fields of a PolicySpec, the seed decides where a network starts.

    >>> type(make_policy("last", size=4)).__name__
    'Last'
    """
    return build_policy(PolicySpec(name=name, **shape), seed)


def build_policy(spec: PolicySpec, seed: int = 0) -> Policy:
    """A fresh policy; the seed decides where a network starts."""
    head, _, argument = spec.name.partition(":")
    if head in POLICIES:
        if argument and head not in WITH_ARGUMENT:
            raise ConfigError(f"policy '{head}' takes no argument, but got '{argument}'")
        return POLICIES[head](spec, seed)
    if "." in head or argument:
        return make_plugin("policy", spec.name, Policy, seed, {})  # type: ignore[type-abstract]
    known = ", ".join(f"{p}:M" if p in ("mix", "last-top") else p for p in sorted(POLICIES))
    raise ConfigError(
        f"unknown policy '{spec.name}': choose one of {known}, or package.module:Class"
    )


def learns(policy: Policy) -> bool:
    """Whether training changes it: whether it is a module with parameters."""
    return isinstance(policy, nn.Module) and any(True for _ in policy.parameters())
