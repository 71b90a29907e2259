"""A policy network over the set of candidates (Deep Sets). It has no parameters per item."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from dips.data.side_information import NO_SIDE_INFORMATION, SideInformation
from dips.kernels.layout import (
    AGE,
    AGE_LIMIT,
    AGE_SCALE,
    FEATURES,
    LOG_AGE,
    LOG_REPEATS,
    LOG_SIGNAL,
    LOG_TIME_SCALE,
    NEWER_DUPLICATES,
    SIGNAL,
    SIGNAL_SCALE,
)
from dips.numerics import fixed_point
from dips.numerics.newer_candidates import newer_duplicate_weight, newer_weight
from dips.policy.base import signals_of
from dips.policy.layers import Layer, SideInputs
from dips.policy.network import Network
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals

SIDE_DIM = 8
"""Length of the vector of a category, or of a name in a further column."""
REPEAT_WEIGHT, DUPLICATE_WEIGHT = 3.0, -12.0
"""Initial direct weights with `repeat_feature`: of log repeats and of newer duplicates."""
NEWEST_WEIGHT = 6.0
"""Initial output weight of the unit that protects the newest entries."""


@final
class SetNetwork(Network):
    """A network that scores a candidate from its features and the mean over all candidates.

    The output layer and a direct linear layer start at zero, so the initial score is minus `slope`
    for each newer candidate: the policy `last`. With `repeat_feature` and a small slope the initial
    policy is close to `frequent`. With `half_life` and slope 0 it is close to `hardest:H`. With
    `newest` it keeps that many newest entries and ranks the rest by predicted score. New items need
    no parameters; only categories need a table per item.

    Args:
        dim: Length of the item vectors that it reads; 0: it reads none.
        hidden: Units per hidden layer.
        center: Mean of the ratings.
        spread: Standard deviation of the ratings.
        slope: Initial penalty per newer candidate.
        newest: Number of newest entries that the initial policy protects.
        items: Number of items, for the table of categories.
        residual: Whether it reads residuals.
        predicted_score: Whether it reads predicted scores, in place of residuals.
        repeat_feature: Whether users repeat items.
        half_life: Start close to `hardest:H` with this half-life: twice the logarithm of the
            absolute residual, less ln 2 / H for each step of age.
        side: Side information of interactions.
        generator: Source of the initial parameters.
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
        half_life: float | None = None,
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
        self.required_signals = tuple(name for name, is_read in wanted.items() if is_read)
        self.dim = dim
        for name, value in (("center", center), ("spread", spread)):  # differ between stacked runs
            self.register_buffer(name, torch.tensor(float(value), dtype=torch.float64))
        self.side = SideInputs(side, items, SIDE_DIM, generator)
        self.first = Layer(dim + len(FEATURES) + self.side.width, hidden, generator)
        self.candidate = Layer(hidden, hidden, generator)
        self.context = Layer(hidden, hidden, generator)
        self.output = nn.Parameter(torch.zeros(hidden, 1))
        self.direct = nn.Parameter(torch.zeros(dim + len(FEATURES) + self.side.width, 1))
        self.slope = nn.Parameter(torch.tensor(float(slope)))
        with torch.no_grad():
            if repeat_feature:
                self.direct[LOG_REPEATS] = REPEAT_WEIGHT
                self.direct[NEWER_DUPLICATES] = DUPLICATE_WEIGHT
            if half_life is not None:
                self.direct[LOG_SIGNAL] = 2.0
                self.direct[AGE] = -AGE_SCALE * math.log(2) / half_life
            if newest:
                self._protect_newest(newest)

    def _protect_newest(self, newest: int) -> None:
        """Initialise so that the network keeps the newest and ranks the rest by its signal.

        The first unit is log(newest + 1) - log(1 + age), cut off at 0.
        """
        self.direct[SIGNAL] = 1.0
        for layer in (self.first, self.candidate, self.context):
            layer.weight[0], layer.bias[0] = 0.0, 0.0
        self.first.weight[0, LOG_AGE], self.first.bias[0] = -1.0, math.log(newest + 1)
        self.candidate.weight[0, 0], self.output[0] = 1.0, NEWEST_WEIGHT

    def score_weighted(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Return scores from two layers; the second also reads the weighted mean of the first."""
        weight = torch.where(candidates.present, weight, 0.0)
        total = _weighted_sum(torch.ones_like(weight)[:, None, :], weight).clamp_min(1)
        newer = newer_weight(candidates.position, weight)
        duplicates = newer_duplicate_weight(candidates.position, candidates.item, weight)
        known = self._features(candidates, signals, newer / total, duplicates)
        first = self.first(known).relu()
        context = _weighted_sum(first.mT, weight) / total
        second = (self.candidate(first) + self.context(context)[:, None, :]).relu()
        learned = fixed_point.matmul(second, self.output) + fixed_point.matmul(known, self.direct)
        return learned[..., 0] - fixed_point.quantize_parameter(self.slope) * newer

    def _features(
        self, candidates: Candidates, signals: Signals, rank: Tensor, duplicates: Tensor
    ) -> Tensor:
        """Return inputs of the first layer: [users, candidates, features + side + dim]."""
        signal = self._signal(signals, rank)
        features = {
            "rating": (candidates.rating.double() - self.center) / self.spread,
            "signal": signal,
            "log_age": candidates.age.double().log1p(),
            "rank": rank,
            "log_elapsed": candidates.elapsed.clamp_min(0).double().log1p() / LOG_TIME_SCALE,
            "log_repeats": candidates.repeats.double().log1p(),
            "newer_duplicates": duplicates,
            "log_signal": (signal.abs() / SIGNAL_SCALE).log1p(),
            "age": candidates.age.double().clamp_max(AGE_LIMIT) / AGE_SCALE,
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


def _weighted_sum(values: Tensor, weight: Tensor) -> Tensor:
    """Return sums over candidates of values [users, n, candidates] times weights, [users, n]."""
    return fixed_point.matmul(values, weight[:, :, None])[..., 0]
