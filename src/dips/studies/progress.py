"""Progress reports of runs and studies, and the types of the callbacks that receive them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BASELINE = "baseline"
"""Role of runs that are trained beside the policy that was asked for."""


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """Progress of stacked runs within an epoch."""

    runs: int
    """Number of runs that are trained together."""
    epoch: int
    """Number of the epoch; those of a second start follow those of the first."""
    epochs: int
    """Number of epochs that the settings allow, of all starts."""
    done: float
    """Epochs that are done, with a share of this one; starts and baselines before are counted."""
    total: int
    """Number of epochs that the settings allow, of all starts and baselines."""
    seconds: float
    """Training time so far."""
    interactions_per_second: float
    role: str = ""
    """BASELINE, or where the runs started, if they are trained from several initial policies."""


@dataclass(frozen=True, kw_only=True)
class EpochReport(TrainingReport):
    """Progress of stacked runs after an epoch."""

    train_loss: list[float]
    """Mean training loss of each run."""
    valid: list[float]
    """Primary validation metric of each run, as a number to minimise."""


@dataclass(frozen=True)
class StudyProgress:
    """Progress of one phase of a study, for example tuning or training."""

    phase: str
    done: float
    total: int
    interactions_per_second: float = 0.0
    unit: str = "epochs of runs"
    """What `done` and `total` count."""


EpochCallback = Callable[[EpochReport], None]
TrainingCallback = Callable[[TrainingReport], None]
"""Called within epochs, and with an `EpochReport` after each."""
StudyCallback = Callable[[StudyProgress], None]
CountCallback = Callable[[int, int], None]
"""Called with the number of finished steps and the number of all steps."""
