"""Uniform samples of the history: `reservoir` and `mix`.

The score is a random priority. There is no state. The key of a user is a hash of (user id, seed,
epoch), see `Stream.keys`; the epoch is 0 outside training. The priority is a hash of (key,
position).
"""

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
        """Return random priorities in [0, 1): each interaction has one that never changes."""
        del signals
        return uniform(candidates.key[:, None], candidates.position)


@final
@dataclass(frozen=True)
class Mix(Policy):
    """Keep the newest M, and a uniform sample of older interactions in the other slots."""

    newest: int

    is_random = True

    def __post_init__(self) -> None:
        if self.newest < 1:
            raise ConfigError(f"mix:{self.newest}: the number of newest must be at least 1")

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return random priorities; the newest M score above all of them."""
        priority = Reservoir().score(candidates, signals)
        newest = 2.0 - candidates.age / self.newest
        return torch.where(candidates.age < self.newest, newest, priority)
