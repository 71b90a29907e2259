"""Policies that look at order only: the newest, the newest distinct, everything."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from dips.policy.base import Policy
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
class Last(Policy):
    """Keep the newest K: what most systems do today."""

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Newer is better."""
        del signals
        return -candidates.age.double()


@final
class LastDistinct(Policy):
    """Keep the newest K different items: of repeats only the newest counts."""

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Newer is better; an interaction that was repeated later is worse than any other."""
        del signals
        outdated = repeated_later(candidates) * candidates.seen[:, None].double()
        return -candidates.age.double() - outdated


@final
class KeepAll(Policy):
    """Keep the whole history: the ceiling of the comparison, not a sketch."""

    keeps_all = True

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Equally good."""
        del signals
        return torch.zeros_like(candidates.position, dtype=torch.float64)


def repeated_later(candidates: Candidates) -> Tensor:
    """[users, candidates] bool: a newer candidate has the same item."""
    same = candidates.item[:, :, None] == candidates.item[:, None, :]
    newer = candidates.position[:, None, :] > candidates.position[:, :, None]
    return (same & newer & candidates.present[:, None, :]).any(2)
