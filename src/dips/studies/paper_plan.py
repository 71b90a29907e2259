"""How much of everything the paper shows is run: in full, and as a small version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dips.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Which cells a stage has."""

    policies: tuple[str, ...]
    sizes: tuple[int, ...]
    every: tuple[int, ...] = (1,)


@dataclass(frozen=True, kw_only=True)
class PaperPlan:
    """How much of everything."""

    grids: Mapping[str, Grid]
    """Cells of the stages that fill a table, by their names."""
    gradients: Mapping[str, int]
    seeds: tuple[int, ...]
    longest: int = 0
    """So many interactions of a user at most, the first ones; 0 means all."""
    recipe: str | None = None
    settings: Mapping[str, Any]
    """Settings of all runs, by name."""

    def but(self, seeds: Sequence[int] | None, settings: Mapping[str, Any]) -> PaperPlan:
        """The same with other seeds, where some are given, and with further settings."""
        chosen = self.seeds if seeds is None else tuple(seeds)
        if not chosen:
            raise ConfigError("there are no seeds: give at least one")
        return replace(self, seeds=chosen, settings={**self.settings, **settings})


POLICIES = ("learned", "dips", "dips@1", "reservoir", "last", "hardest", "influence")
"""Those of the paper, last-K, and ours."""
FULL = PaperPlan(
    grids={
        "compare": Grid(policies=(*POLICIES, "mix:1"), sizes=(2, 4, 8), every=(1, 4)),
        "transfer": Grid(policies=POLICIES, sizes=(1, 2, 4, 8, 16, 32)),
        "session": Grid(policies=("reservoir", "last", "learned"), sizes=(0, 2, 4, 8)),
    },
    gradients={"users": 32, "steps": 20, "longest": 200, "queue": 100},
    seeds=(0, 1, 2, 3, 4),
    settings={},
)
"""As the paper has it, with last-K and ours beside."""
QUICK = PaperPlan(
    grids={
        "compare": Grid(policies=(*POLICIES, "mix:1"), sizes=(2, 4)),
        "transfer": Grid(policies=("learned", "reservoir", "last"), sizes=(2, 4, 8)),
        "session": Grid(policies=("reservoir", "last", "learned"), sizes=(0, 4)),
    },
    gradients={"users": 16, "steps": 8, "longest": 60, "queue": 50},
    seeds=(0,),
    longest=80,
    recipe="default",
    settings={"epochs": 5, "policy_freeze_epochs": 1, "max_users": 100},
)
"""All stages in a few minutes on the CPU: they show that all works, and little of what is best."""
