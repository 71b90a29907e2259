"""Scores that are a state times an item's vector, or their cosine; how to read is left open."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, keep
from dips.recommender.base import Evidence, Recommender
from dips.recommender.ncf import rows_of
from dips.recommender.repeat_scores import START, STRUCK, Own, meetings, own_scores

MOST = 1 << 24
"""Items whose numbers float32 tells apart: a state holds them beside their own scores."""
HEAT = 12.0
"""At first: the score of a cosine of 1."""
FAINT = 1e-4
"""Added to squared lengths: where nothing was read the state is 0, and points nowhere."""


class Linear(Recommender, ABC):
    """A recommender whose scores are linear in the user's state, or in its direction (`cosine`).

    Where items come back (`repeat_feature`) the state has a score of its own for each item besides: what
    was read also speaks for itself. How strongly, and for how long, is learned. Where they never do
    (`filter_sketch`) it speaks against itself. With `cosine` lengths do not count: vectors are read as
    if of length 1, and scores are cosines times a learned heat.
    """

    vectors: nn.Parameter  # [items, dim] what is read of an item
    bias: nn.Parameter  # [items, 1]

    def __init__(
        self,
        *,
        repeat_feature: bool = False,
        filter_sketch: bool = False,
        cosine: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.cosine = cosine
        self.has_own = repeat_feature or filter_sketch
        if self.has_own and self.items > MOST:
            raise ValueError(f"{self.items} items: their numbers are exact up to {MOST} here")
        if self.has_own:
            self.loading = nn.Parameter(torch.tensor(START if repeat_feature else STRUCK))
        if cosine:
            self.logit_scale = nn.Parameter(torch.tensor(HEAT).log())

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """[items, user_dim] the vectors that score."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Linear in the state."""
        state, own = self._parts(user)
        vectors = rows_of(self.table, items)
        scores = self._heated((vectors @ state[:, :, None])[:, :, 0], vectors)
        scores = scores + rows_of(self.bias, items)[:, :, 0]
        return scores + own.of(items) if self.has_own else scores

    def predict_all(self, user: Tensor) -> Tensor:
        """One product of matrices."""
        state, own = self._parts(user)
        table = self.table
        scores = self._heated(state @ table.T, table) + self.bias[:, 0]
        return scores.scatter_add(1, own.item, own.score) if self.has_own else scores

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """One product of matrices."""
        state, own = self._parts(user)
        vectors = rows_of(self.table, items)
        scores = self._heated(state @ vectors.T, vectors) + rows_of(self.bias, items)[:, 0]
        return scores + own.of_some(items, self.items) if self.has_own else scores

    def with_own(self, state: Tensor, evidence: Evidence, rounding: Rounding = keep) -> Tensor:
        """The state after a sketch, and what its entries say for themselves."""
        if not self.has_own:
            return state
        return self.remember(state, evidence.item, meetings(evidence), evidence.age, rounding)

    def remember(
        self, state: Tensor, item: Tensor, weight: Tensor, age: Tensor, rounding: Rounding = keep
    ) -> Tensor:
        """The state [rows, dim] and, where they have some, the own scores of what was read.

        [rows, dim + 2n]: items stand there as numbers, which are exact up to 16 million.
        """
        if not self.has_own:
            return state
        own = own_scores(self.loading, item, weight, age)
        return torch.cat([state, own.item.to(state.dtype), rounding(own.score)], 1)

    def _parts(self, user: Tensor) -> tuple[Tensor, Own]:
        """What meets the vectors, and the items' own scores."""
        shared = len(self.user_prior)
        state, (item, score) = user[:, :shared], user[:, shared:].chunk(2, 1)
        return (_unit(state) if self.cosine else state), Own(item.long(), score)

    def _heated(self, products: Tensor, vectors: Tensor) -> Tensor:
        """Products of states with these vectors as scores: as they are, or cosines times the heat.

        The vectors themselves are not scaled: a product of matrices may go piece by piece.
        """
        return products * (self.logit_scale.exp() / _length(vectors)) if self.cosine else products

    def shown(self, items: Tensor) -> Tensor:
        """[rows, n, dim] the vectors of items as they are read."""
        vectors = rows_of(self.vectors, items)
        return _unit(vectors) if self.cosine else vectors

    @property
    def breadth(self) -> int:
        """Scores of all items."""
        return self.items

    def embedding(self, items: Tensor) -> Tensor:
        """The vector that is read."""
        return self.shown(items).detach()


def _length(vectors: Tensor) -> Tensor:
    """[...] how long vectors [..., dim] are."""
    return (vectors.square().sum(-1) + FAINT).sqrt()


def _unit(vectors: Tensor) -> Tensor:
    """The same of length 1, but for those of about 0."""
    return vectors / _length(vectors)[..., None]
