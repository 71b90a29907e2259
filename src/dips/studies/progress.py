"""Progress reports of runs and studies, and the types of the callbacks that receive them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochReport:
    """Progress of stacked runs after an epoch."""

    runs: int
    """Number of runs that are trained together."""
    epoch: int
    epochs: int
    """Number of epochs that the settings allow."""
    seconds: float
    """Training time so far."""
    interactions_per_second: float
    train_loss: list[float]
    """Mean training loss of each run."""
    valid: list[float]
    """Primary validation metric of each run, as a number to minimise."""
    beside: str = ""
    """What these runs are, if they are trained beside others: baselines, or a further start."""


@dataclass(frozen=True)
class StudyProgress:
    """Progress of one phase of a study, for example tuning or training."""

    phase: str
    done: int
    total: int
    interactions_per_second: float = 0.0
    unit: str = "epochs of runs"
    """What `done` and `total` count."""


EpochCallback = Callable[[EpochReport], None]
StudyCallback = Callable[[StudyProgress], None]
CountCallback = Callable[[int, int], None]
"""Called with the number of finished steps and the number of all steps."""
