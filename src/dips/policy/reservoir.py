"""Uniform samples of the past. A score is a hash of (seed, user, position): there is no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.numerics.hashing import uniform
from dips.policy.base import Policy
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
class Reservoir(Policy):
    """Keep a uniform sample of K of all interactions so far (the paper's Random)."""

    is_random = True

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Each interaction has one lot for life; the K highest lots stay."""
        del signals
        return uniform(candidates.key[:, None], candidates.position)


@final
@dataclass(frozen=True)
class Mix(Policy):
    """Keep the newest M, and a uniform sample of what is older in the other slots."""

    newest: int

    is_random = True

    def __post_init__(self) -> None:
        if self.newest < 1:
            raise ConfigError(f"mix:{self.newest}: the number of newest must be at least 1")

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Lots lie in [0, 1); the newest M score above all of them."""
        lots = Reservoir().score(candidates, signals)
        return torch.where(candidates.age < self.newest, 2.0 - candidates.age / self.newest, lots)
