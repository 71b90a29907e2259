"""Policies that learn: what a network is to a policy, and the network of the paper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn

from dips.numerics import exact
from dips.numerics.hashing import uniform
from dips.policy.base import Policy, Signals
from dips.sketch.records import Candidates

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
class Layer(nn.Module):
    """An affine map on the grid of decisions, started as torch starts its own."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = max(1, inputs) ** -0.5
        self.weight = start(outputs, inputs, bound=bound, generator=generator)
        self.bias = start(outputs, bound=bound, generator=generator)

    def forward(self, states: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return exact.linear(states, self.weight, self.bias)


def start(*shape: int, bound: float, generator: torch.Generator) -> nn.Parameter:
    """A parameter drawn evenly between -bound and bound."""
    return nn.Parameter((torch.rand(*shape, generator=generator) * 2 - 1) * bound)


@final
class RatingNetwork(Network):
    """The paper's network: from the ratings of the candidates, M wide, to a score for each item.

    Computed sparsely: the first layer adds up the candidates' rows, the last one looks them up.
    """

    def __init__(
        self,
        *,
        items: int,
        hidden: int = 128,
        dropout: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        self.dropout = dropout
        inward, outward = items**-0.5, hidden**-0.5
        self.enter = start(items, hidden, bound=inward, generator=generator)
        self.enter_bias = start(hidden, bound=inward, generator=generator)
        self.middle = Layer(hidden, hidden, generator)
        self.leave = start(items, hidden, bound=outward, generator=generator)
        self.leave_bias = start(items, 1, bound=outward, generator=generator)

    def weigh(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Two hidden layers over the weighted ratings; the score of an item is for all its repeats.

        In training some hidden units are left out, drawn from the users' keys.
        """
        del signals
        item = torch.where(candidates.present, candidates.item, 0)
        ratings = torch.where(candidates.present, weight * candidates.rating, 0.0)
        rows = nn.functional.embedding(item, self.enter)
        bias = exact.parameter(self.enter_bias)
        first = exact.matmul(ratings[:, None, :], rows)[:, 0] + bias
        first = self._thinned(first.relu(), candidates, 1)
        second = self._thinned(self.middle(first).relu(), candidates, 2)
        rows = nn.functional.embedding(item, self.leave)
        bias = exact.parameter(nn.functional.embedding(item, self.leave_bias))
        return exact.matmul(second[:, None, :], rows.mT)[:, 0] + bias[..., 0]

    def _thinned(self, units: Tensor, candidates: Candidates, layer: int) -> Tensor:
        """Dropout as a function of user and time: there is no random state."""
        if not self.training or self.dropout == 0:
            return units
        unit = torch.arange(units.shape[1], device=units.device)
        when = candidates.seen[:, None]
        draw = uniform(candidates.key[:, None], DROPOUT, when, unit, layer)
        return units * (draw >= self.dropout) / (1 - self.dropout)
