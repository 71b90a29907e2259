"""What the networks of policies are made of, all on the grid of decisions."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from dips.data.side_information import SideInformation
from dips.numerics import fixed_point
from dips.numerics.embedding_bag import sum_rows
from dips.sketch.records import Candidates
from dips.stream.side_information import categories_of, code_of, number_of


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
        return fixed_point.linear(states, self.weight, self.bias)


@final
class SideInputs(nn.Module):
    """What is told of each candidate besides: categories of its item, further columns of its event.

    Every name, a category's or a column's, has a learned row of `dim` numbers. The rows of an
    item's categories add up; each column has a place of its own, `dim` wide for names and one for
    numbers. What is unknown is 0.
    """

    categories: Tensor

    def __init__(
        self, sides: SideInformation, items: int, dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.kinds, self.columns = sides.kinds, sides.columns
        names = sides.kinds + sum(len(column.names) for column in sides.columns)
        self.width = sum(dim if column.names else 1 for column in sides.columns)
        if names:
            self.rows = start(names, dim, bound=1.0, generator=generator)
        if sides.kinds:
            self.width += dim
            self.register_buffer("categories", categories_of(sides, items))

    def forward(self, candidates: Candidates) -> Tensor:
        """[users, candidates, width]."""
        present = candidates.present
        side = torch.where(present, candidates.side, 0)
        told = [torch.zeros(*side.shape, 0, dtype=torch.float64, device=side.device)]
        if self.kinds:
            codes = self.categories[torch.where(present, candidates.item, 0)]
            told.append(sum_rows(fixed_point.quantize_parameter(self.rows), codes))
        first = self.kinds
        for column in self.columns:
            if column.names:
                code = code_of(side, column)[..., None]
                place = torch.where(code > 0, first + code - 1, -1)
                told.append(sum_rows(fixed_point.quantize_parameter(self.rows), place))
            else:
                told.append(number_of(side, column)[..., None])
            first += len(column.names)
        return torch.where(present[..., None], torch.cat(told, -1), 0.0)


def start(*shape: int, bound: float, generator: torch.Generator) -> nn.Parameter:
    """A parameter drawn evenly between -bound and bound."""
    return nn.Parameter((torch.rand(*shape, generator=generator) * 2 - 1) * bound)
