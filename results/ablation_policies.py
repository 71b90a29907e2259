"""Variants of the set network with fewer inputs or another initialisation, for ablations.py.

Plug-in policies have a fixed scale of ratings and no compiled path. `Unchanged` is `learned` under
these conditions. Each variant starts with the initial weights of `learned`.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from dips.numerics import fixed_point
from dips.policy.layers import uniform_parameter
from dips.policy.network import Network
from dips.policy.set_network import SetNetwork
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals

DIM, CENTER, SPREAD = 32, 3.5, 1.0
"""Default embedding size, and mean and spread of ratings from 1 to 5."""


class Unchanged(Network):
    """The set network with residuals and item embeddings."""

    required_signals = ("residual", "embedding")

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        seeded = torch.Generator().manual_seed(torch.initial_seed())
        self.network = SetNetwork(dim=dim, center=CENTER, spread=SPREAD, generator=seeded)

    def score_weighted(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Return the scores of the set network, [users, candidates]."""
        return self.network.score_weighted(candidates, signals, weight)


class RandomInit(Unchanged):
    """Starts from random weights instead of recency."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__(dim)
        for name in ("output", "direct"):
            shape = getattr(self.network, name).shape
            drawn = uniform_parameter(
                *shape, bound=shape[0] ** -0.5, generator=torch.default_generator
            )
            setattr(self.network, name, drawn)
        self.network.slope = nn.Parameter(torch.tensor(0.0))


@final
class NoAges(RandomInit):
    """Has no age inputs, and therefore starts from random weights."""

    def score_weighted(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Return scores with equal ages, [users, candidates]."""
        return self.network.score_weighted(ageless(candidates), signals, weight)


@final
class RecencySlopeOnly(Unchanged):
    """Has ages only in the recency slope, not as network inputs."""

    def score_weighted(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Return scores without ages minus the slope per newer candidate, [users, candidates]."""
        counted = torch.where(candidates.present, weight, 0.0)
        later = candidates.position[:, None, :] > candidates.position[:, :, None]
        newer = fixed_point.matmul(later.double(), counted[:, :, None])[..., 0]
        scores = self.network.score_weighted(ageless(candidates), signals, weight)
        return scores - fixed_point.quantize_parameter(self.network.slope) * newer


def ageless(candidates: Candidates) -> Candidates:
    """Return candidates with equal positions and times."""
    first = torch.zeros_like(candidates.position)
    return candidates._replace(
        position=torch.where(candidates.present, first, -1),
        seen=torch.ones_like(candidates.seen),
        time=torch.zeros_like(candidates.time),
    )
