"""Keep the newest M candidates, and those with the highest predicted scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.kernels.layout import NEWEST_BONUS
from dips.policy.base import Policy
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
@dataclass(frozen=True)
class LastTop(Policy):
    """Keep the newest M, and fill the other slots by predicted score.

    Where items do not repeat, sketch items are filtered from the ranking. An old item is then worth
    its slot if the recommender would otherwise recommend it again.
    """

    newest: int

    required_signals = ("predicted_score",)

    def __post_init__(self) -> None:
        if self.newest < 1:
            raise ConfigError(f"last-top:{self.newest}: the number of newest must be at least 1")

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return predicted scores; the newest M score above all of them."""
        age = candidates.age.double()
        return torch.where(age < self.newest, NEWEST_BONUS - age, signals.predicted_score)
