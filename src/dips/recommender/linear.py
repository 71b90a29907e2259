"""Scores that are a state times an item's vector, plus its bias; how to read is left open."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from dips.recommender.base import Recommender
from dips.recommender.ncf import rows_of


class Linear(Recommender, ABC):
    """A recommender whose scores are linear in the user's state."""

    vectors: nn.Parameter  # [items, dim] what is read of an item
    bias: nn.Parameter  # [items, 1]

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """[items, user_dim] the vectors that score."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Linear in the state."""
        scores = (rows_of(self.table, items) @ user[:, :, None])[:, :, 0]
        return scores + rows_of(self.bias, items)[:, :, 0]

    def predict_all(self, user: Tensor) -> Tensor:
        """One product of matrices."""
        return user @ self.table.T + self.bias[:, 0]

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """One product of matrices."""
        return user @ rows_of(self.table, items).T + rows_of(self.bias, items)[:, 0]

    @property
    def breadth(self) -> int:
        """Scores of all items."""
        return self.items

    def embedding(self, items: Tensor) -> Tensor:
        """The vector that is read."""
        return rows_of(self.vectors, items).detach()
