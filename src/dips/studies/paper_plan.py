"""Plans of the paper's experiments: the full version, and a reduced one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dips.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells of a stage."""

    policies: tuple[str, ...]
    sizes: tuple[int, ...]
    every: tuple[int, ...] = (1,)


@dataclass(frozen=True, kw_only=True)
class PaperPlan:
    """Cells, seeds and settings of all stages."""

    grids: Mapping[str, Grid]
    """Cells of the stages compare, transfer and session, by name."""
    gradients: Mapping[str, int]
    """Arguments of the gradient study."""
    seeds: tuple[int, ...]
    longest: int = 0
    """Keep the first interactions of each user only, at most this many; 0: all."""
    recipe: str | None = None
    settings: Mapping[str, Any]
    """Settings of all runs, by name."""

    def but(self, seeds: Sequence[int] | None, settings: Mapping[str, Any]) -> PaperPlan:
        """Return a copy with other seeds, if given, and with further settings.

        Raises:
            ConfigError: If there are no seeds.
        """
        chosen = self.seeds if seeds is None else tuple(seeds)
        if not chosen:
            raise ConfigError("--seeds is empty: give at least one seed")
        return replace(self, seeds=chosen, settings={**self.settings, **settings})


POLICIES = ("learned", "dips", "dips@1", "reservoir", "last", "hardest", "influence")
"""Policies of the paper, with `last` and `learned`."""
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
"""The paper's experiments, with `last` and `learned`."""
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
"""All stages in a few minutes on a CPU: a test of the pipeline, not of the policies."""
