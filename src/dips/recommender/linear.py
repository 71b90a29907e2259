"""Scores that are a state times an item's vector, plus its bias; how to read is left open."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from dips.numerics.descent import Settle, keep
from dips.recommender.base import Evidence, Recommender
from dips.recommender.copying import START, meetings, own_scores
from dips.recommender.ncf import rows_of


class Linear(Recommender, ABC):
    """A recommender whose scores are linear in the user's state.

    Where items come back (`returning`) the state has a score of its own for each item besides: what
    was read also speaks for itself. How strongly, and for how long, is learned.
    """

    vectors: nn.Parameter  # [items, dim] what is read of an item
    bias: nn.Parameter  # [items, 1]

    def __init__(self, *, returning: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.has_own = returning
        if returning:
            self.loading = nn.Parameter(torch.tensor(START))

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """[items, user_dim] the vectors that score."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Linear in the state."""
        state, own = self._parts(user)
        scores = (rows_of(self.table, items) @ state[:, :, None])[:, :, 0]
        scores = scores + rows_of(self.bias, items)[:, :, 0]
        return scores + own.gather(1, items) if self.has_own else scores

    def predict_all(self, user: Tensor) -> Tensor:
        """One product of matrices."""
        state, own = self._parts(user)
        scores = state @ self.table.T + self.bias[:, 0]
        return scores + own if self.has_own else scores

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """One product of matrices."""
        state, own = self._parts(user)
        scores = state @ rows_of(self.table, items).T + rows_of(self.bias, items)[:, 0]
        return scores + own[:, items] if self.has_own else scores

    def with_own(self, state: Tensor, evidence: Evidence, settle: Settle = keep) -> Tensor:
        """The state after a sketch, and what its entries say for themselves."""
        if not self.has_own:
            return state
        return self.remember(state, evidence.item, meetings(evidence), evidence.age, settle)

    def remember(
        self, state: Tensor, item: Tensor, weight: Tensor, age: Tensor, settle: Settle = keep
    ) -> Tensor:
        """The state [rows, dim] and, where items come back, the own scores of what was read."""
        if not self.has_own:
            return state
        own = own_scores(self.loading, item, weight, age, self.items)
        return torch.cat([state, settle(own)], 1)

    def _parts(self, user: Tensor) -> tuple[Tensor, Tensor]:
        """What meets the vectors, and the items' own scores."""
        shared = len(self.user_prior)
        return user[:, :shared], user[:, shared:]

    @property
    def breadth(self) -> int:
        """Scores of all items."""
        return self.items

    def embedding(self, items: Tensor) -> Tensor:
        """The vector that is read."""
        return rows_of(self.vectors, items).detach()
