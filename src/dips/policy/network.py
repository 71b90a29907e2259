"""Policies that learn: what a network is to a policy, and the network of the paper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn

from dips.data.side_information import NOTHING, SideInformation
from dips.numerics import fixed_point
from dips.numerics.hashing import uniform
from dips.policy.base import Policy
from dips.policy.layers import Layer, SideInputs, start
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals

DROPOUT = 0xD20907
"""Keeps the draws of dropout apart from all others that come from the same key."""


class Network(nn.Module, Policy, ABC):
    """A policy with parameters, differentiable in them and in the weights of the candidates."""

    @abstractmethod
    def weigh(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """[users, candidates] scores when each candidate counts as much as its `weight` says.

        A present candidate of weight 0 is a ghost: it has a score and no effect on the others.
        """

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """All candidates count fully."""
        return self.weigh(candidates, signals, candidates.present.double())


@final
class PaperNetwork(Network):
    """The paper's network: from the ratings of the candidates, M wide, to a score for each item.

    Computed sparsely: the first layer adds up the candidates' rows, the last one looks them up.
    Side information widens the input by further blocks of M, as in the paper's supplement: a
    number per category (added up for an item), the age in steps, and each further column.
    """

    def __init__(
        self,
        *,
        items: int,
        hidden: int = 128,
        dropout: float = 0.1,
        sides: SideInformation = NOTHING,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        self.dropout, self.timed = dropout, sides.time
        side = SideInputs(sides, items, 1, generator)
        self.blocks = side.width + sides.time
        inward, outward = (items * (1 + self.blocks)) ** -0.5, hidden**-0.5
        self.enter = start(items, hidden, bound=inward, generator=generator)
        self.enter_bias = start(hidden, bound=inward, generator=generator)
        self.middle = Layer(hidden, hidden, generator)
        self.leave = start(items, hidden, bound=outward, generator=generator)
        self.leave_bias = start(items, 1, bound=outward, generator=generator)
        self.side = side
        if self.blocks:
            self.more = start(items * self.blocks, hidden, bound=inward, generator=generator)

    def weigh(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Two hidden layers over the weighted ratings; the score of an item is for all its repeats.

        In training some hidden units are left out, drawn from the users' keys.
        """
        del signals
        item = torch.where(candidates.present, candidates.item, 0)
        ratings = torch.where(candidates.present, weight * candidates.rating, 0.0)
        rows = nn.functional.embedding(item, self.enter)
        bias = fixed_point.quantize_parameter(self.enter_bias)
        first = fixed_point.matmul(ratings[:, None, :], rows)[:, 0] + bias
        if self.blocks:
            first = first + self._told(candidates, item, weight)
        first = self._thinned(first.relu(), candidates, 1)
        second = self._thinned(self.middle(first).relu(), candidates, 2)
        rows = nn.functional.embedding(item, self.leave)
        bias = fixed_point.quantize_parameter(nn.functional.embedding(item, self.leave_bias))
        return fixed_point.matmul(second[:, None, :], rows.mT)[:, 0] + bias[..., 0]

    def _told(self, candidates: Candidates, item: Tensor, weight: Tensor) -> Tensor:
        """[users, hidden] the share of side information in the first layer."""
        told = self.side(candidates)
        if self.timed:
            told = torch.cat([told, candidates.age.double().log1p()[..., None]], -1)
        told = torch.where(candidates.present[..., None], weight[..., None] * told, 0.0)
        place = item[..., None] * self.blocks + torch.arange(self.blocks, device=item.device)
        rows = nn.functional.embedding(place.flatten(1), self.more)
        return fixed_point.matmul(told.flatten(1)[:, None, :], rows)[:, 0]

    def _thinned(self, units: Tensor, candidates: Candidates, layer: int) -> Tensor:
        """Dropout as a function of user and time: there is no random state."""
        if not self.training or self.dropout == 0:
            return units
        unit = torch.arange(units.shape[1], device=units.device)
        when = candidates.seen[:, None]
        draw = uniform(candidates.key[:, None], DROPOUT, when, unit, layer)
        return units * (draw >= self.dropout) / (1 - self.dropout)
