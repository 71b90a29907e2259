"""Policies by name. A `PolicySpec` of plain values is saved with a run.

`package.module:Class` names a user's own class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from dips.data.side_information import NO_SIDE_INFORMATION, SideInformation
from dips.errors import ConfigError, did_you_mean
from dips.plugins.loading import make_plugin
from dips.policy.base import Policy
from dips.policy.frequency import Frequent
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.last_top import LastTop
from dips.policy.paper_network import PaperNetwork
from dips.policy.pretrained import load_pretrained, signal_of
from dips.policy.recency import KeepAll, Last, LastDistinct
from dips.policy.reservoir import Mix, Reservoir
from dips.policy.set_network import SetNetwork
from dips.policy.settings import LEARNED, PRETRAINED

NEWEST = 4
"""Number of newest entries that the initial policy of `learned` protects in larger sketches."""
SHORTEST_HALF_LIFE = 4
"""Least half-life in steps of `hardest:H`, from which `learned` starts on ratings."""


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """Everything that decides the shape of a policy, and nothing that training changes."""

    name: str
    """Name in POLICIES with an argument, such as `mix:2`, or `package.module:Class`."""
    size: int
    """Size of the sketch (K)."""
    damping: float = 1.0
    """Damping of `influence`."""
    items: int = 1
    """Number of items."""
    dim: int = 0
    """Length of the item vectors that `learned` reads."""
    residual: bool = True
    """Whether `learned` reads residuals."""
    predicted_score: bool = False
    """Whether `learned` reads predicted scores, in place of residuals."""
    repeat_feature: bool = False
    """Whether users repeat items."""
    center: float = 0.0
    """Mean of the training ratings."""
    spread: float = 1.0
    """Standard deviation of the training ratings."""
    dropout: float = 0.1
    """Dropout of the paper's network."""
    initial: str = "rule"
    """Where `learned` starts: one of INITIAL_POLICIES."""
    side: SideInformation = NO_SIDE_INFORMATION
    """Side information of interactions."""

    @property
    def argument(self) -> str | None:
        """The part of the name after the colon."""
        return self.name.partition(":")[2] or None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PolicySpec:
        """Return the specification that `to_dict` described."""
        return cls(**{**values, "side": SideInformation.from_dict(values["side"])})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**dataclasses.asdict(self), "side": self.side.to_dict()}


def _number(name: str, text: str | None, meaning: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"policy '{name}:{text}': {meaning} must be a number") from None


def _newest(name: str, spec: PolicySpec, others: str) -> int:
    """Return the number of newest entries to keep; it must leave a slot for others."""
    newest = _number(name, spec.argument, "the number of newest")
    if newest is None or not newest.is_integer():
        raise ConfigError(f"policy '{name}' needs a whole number of newest, for example {name}:2")
    if newest >= spec.size:
        raise ConfigError(f"{name}:{int(newest)} leaves no slot {others} at size {spec.size}")
    return int(newest)


def _paper(spec: PolicySpec, seed: int) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    return PaperNetwork(
        items=spec.items,
        dropout=spec.dropout,
        spread=spec.spread,
        side=spec.side,
        generator=generator,
    )


def initial_half_life(size: int) -> int:
    """Return the half-life H in steps of `hardest:H`, from which `learned` starts on ratings.

    Args:
        size: Sketch size K.

    Example:
        >>> initial_half_life(2), initial_half_life(8)
        (4, 8)
    """
    return max(SHORTEST_HALF_LIFE, size)


def _slope(spec: PolicySpec) -> float:
    """Return the initial penalty per newer candidate."""
    if spec.predicted_score and spec.size > NEWEST:
        return 0.0
    if spec.residual and not spec.predicted_score:
        return 0.0
    return 0.5 / spec.size if spec.repeat_feature else 1.0


def _learned(spec: PolicySpec, seed: int) -> Policy:
    start = PRETRAINED if spec.name == PRETRAINED else spec.initial
    rule = start == "rule"
    hardest = rule and spec.residual and not spec.predicted_score
    network = SetNetwork(
        dim=spec.dim,
        center=spec.center,
        spread=spec.spread,
        items=spec.items,
        residual=spec.residual,
        predicted_score=spec.predicted_score,
        repeat_feature=rule and spec.repeat_feature,
        slope=_slope(spec) if rule else 1.0,
        newest=NEWEST if rule and spec.predicted_score and spec.size > NEWEST else 0,
        half_life=initial_half_life(spec.size) if hardest else None,
        side=spec.side,
        generator=torch.Generator().manual_seed(seed),
    )
    if start == PRETRAINED:
        signal = signal_of(residual=spec.residual, predicted_score=spec.predicted_score)
        load_pretrained(network, signal)
    return network


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
    LEARNED: _learned,
    PRETRAINED: _learned,
}
WITH_ARGUMENT = {"hardest": "HALFLIFE", "influence": "HALFLIFE", "mix": "M", "last-top": "M"}


def make_policy(name: str, *, seed: int = 0, **shape: Any) -> Policy:
    """Return a new policy by name: `last`, `mix:2`, `hardest:20`, or `package.module:Class`.

    Args:
        name: Name in POLICIES with its argument, or the import name of a class.
        seed: Seed of the initial parameters of a network.
        shape: Further fields of a `PolicySpec`.

    Example:
        >>> type(make_policy("last", size=4)).__name__
        'Last'
    """
    return build_policy(PolicySpec(name=name, **shape), seed)


def build_policy(spec: PolicySpec, seed: int = 0) -> Policy:
    """Return a new policy.

    Args:
        spec: Its specification.
        seed: Seed of the initial parameters of a network.

    Raises:
        ConfigError: If the name is unknown or its argument does not fit.
        PluginError: If a user's own class cannot be made.
    """
    head, _, argument = spec.name.partition(":")
    if head in POLICIES:
        if argument and head not in WITH_ARGUMENT:
            raise ConfigError(f"policy '{head}' takes no argument, but got '{argument}'")
        return POLICIES[head](spec, seed)
    if is_own_policy(spec.name):
        return make_plugin("policy", spec.name, Policy, seed, {})  # type: ignore[type-abstract]
    known = ", ".join(f"{p}:M" if p in ("mix", "last-top") else p for p in sorted(POLICIES))
    near = did_you_mean(head, POLICIES)
    raise ConfigError(
        f"unknown policy '{spec.name}': {near}choose one of {known}, or package.module:Class"
    )


def is_own_policy(name: str) -> bool:
    """Return whether a name means a user's own class, which `build_policy` imports."""
    head, _, argument = name.partition(":")
    if head in POLICIES:
        return False
    if "." in head:
        return True
    return bool(argument) and not (did_you_mean(head, POLICIES) and find_spec(head) is None)


def is_rule(name: str, size: int) -> bool:
    """Return whether a policy is a rule: it is not trained, and it keeps at most K interactions.

    Args:
        name: Name in POLICIES with its argument, or the import name of a class.
        size: Sketch size for which the policy is made.
    """
    policy = make_policy(name, size=size)
    return not learns(policy) and not policy.keeps_all


def learns(policy: Policy) -> bool:
    """Return whether a policy is a module with parameters.

    Training changes them, except those of `pretrained`.
    """
    return isinstance(policy, nn.Module) and any(True for _ in policy.parameters())
