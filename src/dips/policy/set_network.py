"""A network over the set of candidates: it knows no item by name, so it can score new ones."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from dips.data.side_information import NO_SIDE_INFORMATION, SideInformation
from dips.kernels.layout import FEATURES, LOG_AGE, LOG_REPEATS, LOG_TIME_SCALE, NEWER_DUPLICATES, SIGNAL
from dips.numerics import fixed_point
from dips.numerics.newer_candidates import newer_duplicate_weight, newer_weight
from dips.policy.base import signals_of
from dips.policy.layers import Layer, SideInputs
from dips.policy.network import Network
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals

NAME = 8
"""Numbers that stand for a category, or for a name in a further column."""
MET, AGAIN = 3.0, -12.0
"""Where it starts as `frequent`: for the logarithm of repeats, and for each newer twin."""
SAFE = 6.0
"""Where it starts with the newest: what the logarithm of an age is worth to them, in logits."""


@final
class SetNetwork(Network):
    """Scores a candidate by what it is and by the mean of what the others are.

    The last layer, and a direct one beside it for what is simple, start at zero: the score is then
    minus `slope` for each newer candidate, which is the policy `last`. Where items come back
    (`repeat_feature`, with a small slope) it starts near the policy `frequent` instead. With
    `newest` of them it starts with these, and fills up with what is told to be likeliest (`predicted_score`).
    Its size does not grow with the catalogue; only with categories it has a table of which items
    have which.
    """

    center: Tensor
    spread: Tensor

    def __init__(
        self,
        *,
        dim: int,
        hidden: int = 64,
        center: float = 0.0,
        spread: float = 1.0,
        slope: float = 1.0,
        newest: int = 0,
        items: int = 1,
        residual: bool = True,
        predicted_score: bool = False,
        repeat_feature: bool = False,
        side: SideInformation = NO_SIDE_INFORMATION,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        wanted = {
            "predicted_score": predicted_score,
            "residual": residual and not predicted_score,
            "embedding": bool(dim),
        }
        self.required_signals = tuple(name for name, asked in wanted.items() if asked)
        self.dim = dim
        self.register_buffer("center", torch.tensor(float(center)))  # each run of a stack its own
        self.register_buffer("spread", torch.tensor(float(spread)))
        self.side = SideInputs(side, items, NAME, generator)
        self.first = Layer(dim + len(FEATURES) + self.side.width, hidden, generator)
        self.candidate = Layer(hidden, hidden, generator)
        self.context = Layer(hidden, hidden, generator)
        self.output = nn.Parameter(torch.zeros(hidden, 1))
        self.direct = nn.Parameter(torch.zeros(dim + len(FEATURES) + self.side.width, 1))
        self.slope = nn.Parameter(torch.tensor(float(slope)))
        with torch.no_grad():
            if repeat_feature:
                self.direct[LOG_REPEATS], self.direct[NEWER_DUPLICATES] = MET, AGAIN
            if newest:
                self._trust(newest)

    def _trust(self, newest: int) -> None:
        """Start as what is told, with so many of the newest hardly within its reach.

        The first unit is how much less than theirs the logarithm of an age is, and nothing else.
        """
        self.direct[SIGNAL] = 1.0
        for layer in (self.first, self.candidate, self.context):
            layer.weight[0], layer.bias[0] = 0.0, 0.0
        self.first.weight[0, LOG_AGE], self.first.bias[0] = -1.0, math.log(newest + 1)
        self.candidate.weight[0, 0], self.output[0] = 1.0, SAFE

    def score_weighted(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Two layers; between them each candidate meets the weighted mean of all."""
        weight = torch.where(candidates.present, weight, 0.0)
        total = _weighed(torch.ones_like(weight)[:, None, :], weight).clamp_min(1)
        newer = newer_weight(candidates.position, weight)
        duplicates = newer_duplicate_weight(candidates.position, candidates.item, weight)
        known = self._features(candidates, signals, newer / total, duplicates)
        first = self.first(known).relu()
        context = _weighed(first.mT, weight) / total
        second = (self.candidate(first) + self.context(context)[:, None, :]).relu()
        learned = fixed_point.matmul(second, self.output) + fixed_point.matmul(known, self.direct)
        return learned[..., 0] - fixed_point.quantize_parameter(self.slope) * newer

    def _features(
        self, candidates: Candidates, signals: Signals, rank: Tensor, duplicates: Tensor
    ) -> Tensor:
        """Return inputs of the first layer: [users, candidates, features + side + dim]."""
        spread = self.spread.double()
        features = {
            "rating": (candidates.rating.double() - self.center.double()) / spread,
            "signal": self._signal(signals, rank) / spread,
            "log_age": candidates.age.double().log1p(),
            "rank": rank,
            "log_elapsed": candidates.elapsed.clamp_min(0).double().log1p() / LOG_TIME_SCALE,
            "log_repeats": candidates.repeats.double().log1p(),
            "newer_duplicates": duplicates,
        }
        inputs = torch.stack([features[name] for name in FEATURES], -1)
        known = torch.cat([inputs, self.side(candidates)], -1)
        if self.dim:
            known = torch.cat([known, signals.embedding.double()], -1)
        return torch.where(candidates.present[..., None], known, 0.0)

    def _signal(self, signals: Signals, like: Tensor) -> Tensor:
        """Return the signal that the network reads [users, candidates]; 0 if it reads none."""
        names = signals_of(self)
        if "predicted_score" in names:
            return signals.predicted_score
        return signals.residual if "residual" in names else torch.zeros_like(like)


def _weighed(values: Tensor, weight: Tensor) -> Tensor:
    """[users, n] sums over candidates of `values` [users, n, candidates] by weight."""
    return fixed_point.matmul(values, weight[:, :, None])[..., 0]
