"""Set networks that are told less or start elsewhere: classes of one's own, for ablations.py.

A class of one's own is not told the data's scale of ratings, and walks without compiled loops:
`Same` is `learned` under these conditions. Each starts with the weights that `learned` starts with.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from dips.numerics import fixed_point
from dips.policy.layers import start
from dips.policy.network import Network
from dips.policy.set_network import SetNetwork
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals

DIM, CENTER, SPREAD = 32, 3.5, 1.0
"""The recommender's default width, and about the scale of ratings from 1 to 5."""


class Same(Network):
    """A set network inside, that sees residuals and the items' vectors; nothing is changed."""

    required_signals = ("residual", "embedding")

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        seeded = torch.Generator().manual_seed(torch.initial_seed())
        self.network = SetNetwork(dim=dim, center=CENTER, spread=SPREAD, generator=seeded)

    def weigh(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """As inside."""
        return self.network.weigh(candidates, signals, weight)


class RandomStart(Same):
    """It starts anywhere, and has to find out about recency as about everything else."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__(dim)
        for name in ("last", "direct"):
            shape = getattr(self.network, name).shape
            drawn = start(*shape, bound=shape[0] ** -0.5, generator=torch.default_generator)
            setattr(self.network, name, drawn)
        self.network.slope = nn.Parameter(torch.tensor(0.0))


@final
class NoAges(RandomStart):
    """It cannot know which is newer; so it starts anywhere."""

    def weigh(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """All are of one age."""
        return self.network.weigh(ageless(candidates), signals, weight)


@final
class RecencyAlone(Same):
    """It starts from recency, and ages are only in how steep that is, never beside the rest."""

    def weigh(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """A score without ages, less the slope for each newer candidate."""
        counted = torch.where(candidates.present, weight, 0.0)
        later = candidates.position[:, None, :] > candidates.position[:, :, None]
        newer = fixed_point.matmul(later.double(), counted[:, :, None])[..., 0]
        scores = self.network.weigh(ageless(candidates), signals, weight)
        return scores - fixed_point.quantize_parameter(self.network.slope) * newer


def ageless(candidates: Candidates) -> Candidates:
    """The same as if all had happened at once."""
    first = torch.zeros_like(candidates.position)
    return candidates._replace(
        position=torch.where(candidates.present, first, -1),
        seen=torch.ones_like(candidates.seen),
        time=torch.zeros_like(candidates.time),
    )
