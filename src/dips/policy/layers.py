"""Layers of policy networks, on the fixed-point grid."""

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
    """An affine layer on the fixed-point grid, initialised like `torch.nn.Linear`."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = max(1, inputs) ** -0.5
        self.weight = uniform_parameter(outputs, inputs, bound=bound, generator=generator)
        self.bias = uniform_parameter(outputs, bound=bound, generator=generator)

    def forward(self, states: Tensor) -> Tensor:
        """Return outputs [..., outputs] of states [..., inputs]."""
        return fixed_point.linear(states, self.weight, self.bias)


@final
class SideInputs(nn.Module):
    """Features from side information: categories of the item, further columns of the event.

    Every category and every value of a categorical column has a learned vector. The vectors of an
    item's categories are summed. Each column has its own features: a vector if it is categorical,
    one feature if it holds numbers. Unknown values are 0.

    Args:
        side: Side information of interactions.
        items: Number of items.
        dim: Length of the vectors.
        generator: Source of the initial parameters.
    """

    categories: Tensor

    def __init__(
        self, side: SideInformation, items: int, dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.category_count, self.columns = side.kinds, side.columns
        vectors = side.kinds + sum(len(column.names) for column in side.columns)
        self.width = sum(dim if column.names else 1 for column in side.columns)
        if vectors:
            self.vectors = uniform_parameter(vectors, dim, bound=1.0, generator=generator)
        if self.category_count:
            self.width += dim
            self.register_buffer("categories", categories_of(side, items))

    def forward(self, candidates: Candidates) -> Tensor:
        """Return features of the candidates, [users, candidates, width]."""
        present = candidates.present
        side = torch.where(present, candidates.side, 0)
        features = [torch.zeros(*side.shape, 0, dtype=torch.float64, device=side.device)]
        if self.category_count:
            codes = self.categories[torch.where(present, candidates.item, 0)]
            features.append(sum_rows(fixed_point.quantize_parameter(self.vectors), codes))
        first = self.category_count
        for column in self.columns:
            if column.names:
                code = code_of(side, column)[..., None]
                row = torch.where(code > 0, first + code - 1, -1)
                features.append(sum_rows(fixed_point.quantize_parameter(self.vectors), row))
            else:
                features.append(number_of(side, column)[..., None])
            first += len(column.names)
        return torch.where(present[..., None], torch.cat(features, -1), 0.0)


def uniform_parameter(*shape: int, bound: float, generator: torch.Generator) -> nn.Parameter:
    """Return a parameter with uniform random values between -bound and bound."""
    return nn.Parameter((torch.rand(*shape, generator=generator) * 2 - 1) * bound)
