"""Keep the candidates with the largest loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.policy.base import Policy
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
@dataclass(frozen=True)
class Hardest(Policy):
    """Keep the K candidates with the largest loss (the paper's Hardest).

    Args:
        half_life: Steps after which a loss counts half; None: losses do not decay.
    """

    half_life: float | None = None

    required_signals = ("loss",)

    def __post_init__(self) -> None:
        check_half_life("hardest", self.half_life)

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return the decayed loss; the user is adapted to the sketch before the refresh."""
        return signals.loss * decay_factors(candidates, self.half_life)


def decay_factors(candidates: Candidates, half_life: float | None) -> Tensor:
    """Return 2^(-age / half_life) for each candidate, [users, candidates]; 1 without half-life."""
    age = candidates.age.double()
    if half_life is None:
        return torch.ones_like(age)
    return torch.exp2(-age.clamp_min(0) / half_life)


def check_half_life(name: str, half_life: float | None) -> None:
    """Refuse a half-life that is not positive.

    Raises:
        ConfigError: If the half-life is 0 or negative.
    """
    if half_life is not None and not half_life > 0:
        raise ConfigError(f"{name}:{half_life}: the half-life in steps must be positive")
