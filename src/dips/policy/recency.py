"""Policies that depend on order only: `last`, `last-distinct` and `all`."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from dips.policy.base import Policy
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
class Last(Policy):
    """Keep the newest K interactions."""

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return minus the age."""
        del signals
        return -candidates.age.double()


@final
class LastDistinct(Policy):
    """Keep the newest K different items: the newest interaction with each."""

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return minus the age; an interaction with a newer duplicate scores below all others."""
        del signals
        outdated = has_newer_duplicate(candidates) * candidates.seen[:, None].double()
        return -candidates.age.double() - outdated


@final
class KeepAll(Policy):
    """Keep the whole history: the upper end of a comparison, not a sketch."""

    keeps_all = True

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return 0 for every candidate."""
        del signals
        return torch.zeros_like(candidates.position, dtype=torch.float64)


def has_newer_duplicate(candidates: Candidates) -> Tensor:
    """Return whether a newer candidate has the same item, [users, candidates] bool."""
    same = candidates.item[:, :, None] == candidates.item[:, None, :]
    newer = candidates.position[:, None, :] > candidates.position[:, :, None]
    return (same & newer & candidates.present[:, None, :]).any(2)
