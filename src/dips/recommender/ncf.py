"""What both forms of neural collaborative filtering, the paper's base model, share."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

import torch
from torch import Tensor, nn

from dips.data.side_information import NOTHING, SideInformation
from dips.numerics.embedding_bag import sum_rows
from dips.recommender.base import Recommender
from dips.recommender.losses import Loss
from dips.stream.side_information import categories_of, item_of, moment_of

BY_ITEM = ("vectors", "bias", "categories")
"""Tables with a row for each item."""


def rows_of(table: Tensor, items: Tensor) -> Tensor:
    """Rows of a table; unlike indexing, its gradient is the same for any number of threads."""
    return nn.functional.embedding(items, table)


class NCF(Recommender, ABC):
    """What both forms share: a vector and a bias per item, and a prior that starts at random.

    Side information changes the item's vector and bias, and nothing else, so that scores stay what
    they are in the user's vector. Each category has a vector and a bias of its own, added to those
    of its items. Where time counts, `items` are tokens (`stream.side_information`): a learned
    direction and a learned number, times the standardised time, are added too. All of it starts
    at 0.
    """

    undecayed: ClassVar[tuple[str, ...]] = (
        *Recommender.undecayed, "kind_bias", "trend", "own", "recency_decay",
    )  # fmt: skip
    categories: Tensor

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int,
        user_dim: int,
        spread: float,
        generator: torch.Generator,
        offset: float = 0.0,
        inner_lr: float = 0.1,
        inner_steps: int = 10,
        prior_penalty: float = 0.0,
        sides: SideInformation = NOTHING,
    ) -> None:
        super().__init__(
            items=items,
            user_dim=user_dim,
            loss=loss,
            offset=offset,
            inner_lr=inner_lr,
            inner_steps=inner_steps,
            prior_penalty=prior_penalty,
        )
        self.vectors = nn.Parameter(torch.randn(items, dim, generator=generator) * spread)
        self.bias = nn.Parameter(torch.zeros(items, loss.channels))
        with torch.no_grad():
            self.user_prior[:dim] = torch.randn(dim, generator=generator) * spread
        self.has_kinds, self.has_times = bool(sides.kinds), sides.clock is not None
        if self.has_kinds:
            self.kinds = nn.Parameter(torch.zeros(sides.kinds, dim))
            self.kind_bias = nn.Parameter(torch.zeros(sides.kinds, loss.channels))
            self.register_buffer("categories", categories_of(sides, items))
        if self.has_times:
            self.pace = nn.Parameter(torch.zeros(dim))
            self.trend = nn.Parameter(torch.zeros(loss.channels))

    @property
    def table(self) -> Tensor:
        """[items, dim] the vectors of all items, with those of their categories."""
        if not self.has_kinds:
            return self.vectors
        return self.vectors + sum_rows(self.kinds, self.categories)

    @property
    def biases(self) -> Tensor:
        """[items, channels] the biases of all items, with those of their categories."""
        if not self.has_kinds:
            return self.bias
        return self.bias + sum_rows(self.kind_bias, self.categories)

    def rows(self, items: Tensor) -> Tensor:
        """[rows, n, dim] what stands for an item in a score."""
        item = self._item(items)
        rows = rows_of(self.vectors, item)
        if self.has_kinds:
            rows = rows + sum_rows(self.kinds, self.categories[item])
        if self.has_times:
            rows = rows + self._moment(items) * self.pace
        return rows

    def intercept(self, items: Tensor) -> Tensor:
        """The item's bias: [rows, n], or [rows, n, channels]."""
        item = self._item(items)
        bias = rows_of(self.bias, item) + self.offset
        if self.has_kinds:
            bias = bias + sum_rows(self.kind_bias, self.categories[item])
        if self.has_times:
            bias = bias + self._moment(items) * self.trend
        return bias if self.loss.channels > 1 else bias[..., 0]

    def embedding(self, items: Tensor) -> Tensor:
        """The item's vector."""
        return self.rows(items).detach()

    def _item(self, items: Tensor) -> Tensor:
        return item_of(items) if self.has_times else items

    def _moment(self, items: Tensor) -> Tensor:
        """[rows, n, 1] when it was, as a number to multiply with."""
        return moment_of(items)[..., None].to(self.user_prior.dtype)
