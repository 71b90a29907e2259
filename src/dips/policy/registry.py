"""Policies by name: a dictionary, and `package.module:Class` for a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from dips.errors import ConfigError
from dips.policy.base import Policy
from dips.policy.frequency import Frequent
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.recency import Everything, Last, LastDistinct
from dips.policy.reservoir import Mix, Reservoir


@dataclass(frozen=True)
class Setting:
    """What a policy may need to know when it is made."""

    argument: str | None
    size: int
    damping: float


def _number(name: str, text: str | None, meaning: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"policy '{name}:{text}': {meaning} must be a number") from None


def _mix(setting: Setting) -> Policy:
    newest = _number("mix", setting.argument, "the number of newest")
    if newest is None or not newest.is_integer():
        raise ConfigError("policy 'mix' needs a whole number of newest, for example mix:2")
    if newest >= setting.size:
        raise ConfigError(f"mix:{int(newest)} leaves no slot to sample at size {setting.size}")
    return Mix(int(newest))


POLICIES: dict[str, Callable[[Setting], Policy]] = {
    "last": lambda setting: Last(),
    "reservoir": lambda setting: Reservoir(),
    "hardest": lambda setting: Hardest(_number("hardest", setting.argument, "the half-life")),
    "influence": lambda setting: Influence(
        setting.size, setting.damping, _number("influence", setting.argument, "the half-life")
    ),
    "mix": _mix,
    "last-distinct": lambda setting: LastDistinct(),
    "frequent": lambda setting: Frequent(),
    "all": lambda setting: Everything(),
}
WITH_ARGUMENT = {"hardest": "HALFLIFE", "influence": "HALFLIFE", "mix": "M"}


def make_policy(name: str, *, size: int, damping: float = 1.0) -> Policy:
    """The policy of this name: `last`, `mix:2`, `hardest:20`, or `package.module:Class`.

    >>> type(make_policy("last", size=4)).__name__
    'Last'
    """
    head, _, argument = name.partition(":")
    if head in POLICIES:
        if argument and head not in WITH_ARGUMENT:
            raise ConfigError(f"policy '{head}' takes no argument, but got '{argument}'")
        return POLICIES[head](Setting(argument or None, size, damping))
    if "." in head or argument:
        return _imported(head, argument)
    known = ", ".join(f"{p}:M" if p == "mix" else p for p in sorted(POLICIES))
    raise ConfigError(f"unknown policy '{name}': choose one of {known}, or package.module:Class")


def _imported(module: str, name: str) -> Policy:
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"policy '{module}:{name}' cannot be made: {error}") from None
    if not isinstance(made, Policy):
        raise ConfigError(f"policy '{module}:{name}' is not a dips.Policy")
    return made
