"""Neural collaborative filtering, the paper's base model: what its two forms share."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

import torch
from torch import Tensor, nn

from dips.data.side_information import NO_SIDE_INFORMATION, SideInformation
from dips.numerics.embedding_bag import sum_rows
from dips.recommender.base import Recommender
from dips.recommender.losses import Loss
from dips.stream.side_information import categories_of, item_of, time_of

ITEM_TABLES = ("vectors", "bias", "categories")
"""Names of tensors with a row per item."""


def embed(table: Tensor, items: Tensor) -> Tensor:
    """Return rows of a table; unlike indexing, the gradient does not depend on thread count."""
    return nn.functional.embedding(items, table)


class NCF(Recommender, ABC):
    """A recommender with a vector and a bias per item, and a random prior.

    Side information changes item vectors and biases only, so outputs stay the same function of the
    user vector. Each category has a vector and a bias, added to those of its items. Where time is
    side information, `items` are tokens (`dips.stream.side_information`): a learned vector and a
    learned bias, times the standardised time, are added. All of these start at 0.
    """

    no_weight_decay: ClassVar[tuple[str, ...]] = (
        *Recommender.no_weight_decay, "category_bias", "time_bias", "repeat_scale", "recency_decay",
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
        rating_center: float = 0.0,
        rating_spread: float = 1.0,
        inner_lr: float = 0.1,
        inner_steps: int = 10,
        prior_penalty: float = 0.0,
        side: SideInformation = NO_SIDE_INFORMATION,
    ) -> None:
        super().__init__(
            items=items,
            user_dim=user_dim,
            loss=loss,
            offset=offset,
            rating_center=rating_center,
            rating_spread=rating_spread,
            inner_lr=inner_lr,
            inner_steps=inner_steps,
            prior_penalty=prior_penalty,
        )
        self.vectors = nn.Parameter(torch.randn(items, dim, generator=generator) * spread)
        self.bias = nn.Parameter(torch.zeros(items, loss.channels))
        with torch.no_grad():
            self.user_prior[:dim] = torch.randn(dim, generator=generator) * spread
        self.has_categories, self.has_times = bool(side.kinds), side.clock is not None
        if self.has_categories:
            self.category_vectors = nn.Parameter(torch.zeros(side.kinds, dim))
            self.category_bias = nn.Parameter(torch.zeros(side.kinds, loss.channels))
            self.register_buffer("categories", categories_of(side, items))
        if self.has_times:
            self.time_vector = nn.Parameter(torch.zeros(dim))
            self.time_bias = nn.Parameter(torch.zeros(loss.channels))

    @property
    def table(self) -> Tensor:
        """[items, dim] the vectors of all items, with those of their categories."""
        if not self.has_categories:
            return self.vectors
        return self.vectors + sum_rows(self.category_vectors, self.categories)

    @property
    def biases(self) -> Tensor:
        """[items, channels] the biases of all items, with those of their categories."""
        if not self.has_categories:
            return self.bias
        return self.bias + sum_rows(self.category_bias, self.categories)

    def item_vectors(self, items: Tensor) -> Tensor:
        """Return item vectors with side information, [rows, n, dim]."""
        item = self._item(items)
        rows = embed(self.vectors, item)
        if self.has_categories:
            rows = rows + sum_rows(self.category_vectors, self.categories[item])
        if self.has_times:
            rows = rows + self._time(items) * self.time_vector
        return rows

    def intercept(self, items: Tensor) -> Tensor:
        """Return offset plus item bias with side information: [rows, n], or with channels."""
        item = self._item(items)
        bias = embed(self.bias, item) + self.offset
        if self.has_categories:
            bias = bias + sum_rows(self.category_bias, self.categories[item])
        if self.has_times:
            bias = bias + self._time(items) * self.time_bias
        return bias if self.loss.channels > 1 else bias[..., 0]

    def embedding(self, items: Tensor) -> Tensor:
        """Return detached item vectors, [rows, n, dim]."""
        return self.item_vectors(items).detach()

    def _item(self, items: Tensor) -> Tensor:
        return item_of(items) if self.has_times else items

    def _time(self, items: Tensor) -> Tensor:
        """[rows, n, 1] the standardised times of tokens."""
        return time_of(items)[..., None].to(self.user_prior.dtype)
