"""Keep the newest, and what the recommender still expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.policy.base import Policy
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals

ABOVE = 2.0**30
"""No recommender expects anything as much as this."""


@final
@dataclass(frozen=True)
class LastTop(Policy):
    """Keep the newest M, and in the other slots what the recommender expects most of all.

    Where items do not come back, what the sketch holds is struck out of the ranking: an old item is
    worth its slot if the recommender would otherwise put it forward again.
    """

    newest: int

    required_signals = ("predicted_score",)

    def __post_init__(self) -> None:
        if self.newest < 1:
            raise ConfigError(f"last-top:{self.newest}: the number of newest must be at least 1")

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """The newest M score above whatever is expected."""
        age = candidates.age.double()
        return torch.where(age < self.newest, ABOVE - age, signals.predicted_score)
