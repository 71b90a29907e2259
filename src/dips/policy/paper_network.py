"""The paper's policy network: ratings of the candidates in, a score for each item out."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from dips.data.side_information import NO_SIDE_INFORMATION, SideInformation
from dips.numerics import fixed_point
from dips.numerics.hashing import uniform
from dips.policy.layers import Layer, SideInputs, uniform_parameter
from dips.policy.network import Network
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals

DROPOUT = 0xD20907
"""Separates the random numbers of dropout from others that come from the same key."""


@final
class PaperNetwork(Network):
    """The paper's f (Eq. 4): a network with M inputs z_hat * y, two hidden layers and M outputs.

    It is computed sparsely: the first layer sums the rows of the candidates' items, the last layer
    looks up their rows. Side information adds blocks of M inputs, as in the paper's supplement: a
    number per category (summed for an item), the age in steps, and each further column. Ratings y
    are divided by their spread, but not centred: an average item would vanish from the inputs.

    Args:
        items: Number of items (M).
        hidden: Units per hidden layer.
        dropout: Share of hidden units that are dropped in training.
        spread: Standard deviation of the ratings.
        side: Side information of interactions.
        generator: Source of the initial parameters.
    """

    spread: Tensor

    def __init__(
        self,
        *,
        items: int,
        hidden: int = 128,
        dropout: float = 0.1,
        spread: float = 1.0,
        side: SideInformation = NO_SIDE_INFORMATION,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        self.dropout, self.timed = dropout, side.time
        self.register_buffer("spread", torch.tensor(float(spread), dtype=torch.float64))
        side_inputs = SideInputs(side, items, 1, generator)
        self.blocks = side_inputs.width + side.time
        bound, output_bound = (items * (1 + self.blocks)) ** -0.5, hidden**-0.5
        self.input_weight = uniform_parameter(items, hidden, bound=bound, generator=generator)
        self.input_bias = uniform_parameter(hidden, bound=bound, generator=generator)
        self.hidden = Layer(hidden, hidden, generator)
        self.output_weight = uniform_parameter(
            items, hidden, bound=output_bound, generator=generator
        )
        self.output_bias = uniform_parameter(items, 1, bound=output_bound, generator=generator)
        self.side = side_inputs
        if self.blocks:
            self.side_weight = uniform_parameter(
                items * self.blocks, hidden, bound=bound, generator=generator
            )

    def score_weighted(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Return scores from the weighted ratings; duplicates of an item share its score."""
        del signals
        item = torch.where(candidates.present, candidates.item, 0)
        ratings = weight * (candidates.rating.double() / self.spread)
        ratings = torch.where(candidates.present, ratings, 0.0)
        rows = nn.functional.embedding(item, self.input_weight)
        bias = fixed_point.quantize_parameter(self.input_bias)
        first = fixed_point.matmul(ratings[:, None, :], rows)[:, 0] + bias
        if self.blocks:
            first = first + self._side_units(candidates, item, weight)
        first = self._dropout(first.relu(), candidates, 1)
        second = self._dropout(self.hidden(first).relu(), candidates, 2)
        rows = nn.functional.embedding(item, self.output_weight)
        bias = fixed_point.quantize_parameter(nn.functional.embedding(item, self.output_bias))
        return fixed_point.matmul(second[:, None, :], rows.mT)[:, 0] + bias[..., 0]

    def _side_units(self, candidates: Candidates, item: Tensor, weight: Tensor) -> Tensor:
        """[users, hidden] what side information adds to the first layer."""
        side = self.side(candidates)
        if self.timed:
            side = torch.cat([side, candidates.age.double().log1p()[..., None]], -1)
        side = torch.where(candidates.present[..., None], weight[..., None] * side, 0.0)
        place = item[..., None] * self.blocks + torch.arange(self.blocks, device=item.device)
        rows = nn.functional.embedding(place.flatten(1), self.side_weight)
        return fixed_point.matmul(side.flatten(1)[:, None, :], rows)[:, 0]

    def _dropout(self, units: Tensor, candidates: Candidates, layer: int) -> Tensor:
        """Apply dropout as a function of user and time: there is no random state."""
        if not self.training or self.dropout == 0:
            return units
        unit = torch.arange(units.shape[1], device=units.device)
        seen = candidates.seen[:, None]
        draw = uniform(candidates.key[:, None], DROPOUT, seen, unit, layer)
        return units * (draw >= self.dropout) / (1 - self.dropout)
