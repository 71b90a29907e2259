"""Plans of the paper's experiments: the full version, and a reduced one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dips.data.splitting import FOLDS
from dips.errors import ConfigError

STAGES = ("compare", "transfer", "session", "gradients", "story")
"""Stages of `dips paper`, in their order."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells of a stage."""

    policies: tuple[str, ...]
    sizes: tuple[int, ...]
    every: tuple[int, ...] = (1,)


@dataclass(frozen=True, kw_only=True)
class PaperPlan:
    """Cells, folds and settings of all stages."""

    grids: Mapping[str, Grid]
    """Cells of the stages compare, transfer and session, by name."""
    gradients: Mapping[str, int]
    """Arguments of the gradient study."""
    folds: int
    seed: int = 0
    longest: int = 0
    """Keep the first interactions of each user only, at most this many; 0: all."""
    recipe: str | None = None
    settings: Mapping[str, Any]
    """Settings of all runs, by name."""

    def but(self, folds: int | None, seed: int, settings: Mapping[str, Any]) -> PaperPlan:
        """Return a copy with another number of folds, if given, a seed, and further settings.

        Raises:
            ConfigError: If the number of folds is out of range.
        """
        chosen = self.folds if folds is None else folds
        if not 1 <= chosen <= FOLDS:
            raise ConfigError(f"folds is {chosen}: it must be between 1 and {FOLDS}")
        return replace(self, folds=chosen, seed=seed, settings={**self.settings, **settings})


POLICIES = ("learned", "dips", "dips@1", "reservoir", "last", "hardest", "influence")
"""Policies of the paper, with `last` and `learned`."""
FULL = PaperPlan(
    grids={
        "compare": Grid(policies=(*POLICIES, "mix:1"), sizes=(2, 4, 8), every=(1, 4)),
        "transfer": Grid(policies=POLICIES, sizes=(1, 2, 4, 8, 16, 32)),
        "session": Grid(policies=("reservoir", "last", "learned"), sizes=(0, 2, 4, 8)),
    },
    gradients={"users": 32, "steps": 20, "longest": 200, "queue": 100},
    folds=FOLDS,
    settings={},
)
"""The paper's experiments, with `last` and `learned`."""
TRANSFER_POLICIES = FULL.grids["transfer"].policies
"""Policies of the paper's transfer experiment, with `last` and `learned`."""
QUICK = PaperPlan(
    grids={
        "compare": Grid(policies=(*POLICIES, "mix:1"), sizes=(2, 4)),
        "transfer": Grid(policies=("learned", "reservoir", "last"), sizes=(2, 4, 8)),
        "session": Grid(policies=("reservoir", "last", "learned"), sizes=(0, 4)),
    },
    gradients={"users": 16, "steps": 8, "longest": 60, "queue": 50},
    folds=1,
    longest=80,
    recipe="default",
    settings={"epochs": 5, "policy_freeze_epochs": 1, "max_users": 100},
)
"""All stages in a few minutes on a CPU: a test of the pipeline, not of the policies."""
