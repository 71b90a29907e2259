"""Recommenders whose scores are a state times item vectors, or their cosine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, identity
from dips.recommender.base import Evidence, Recommender
from dips.recommender.ncf import embed
from dips.recommender.repeat_scores import (
    FILTER_START,
    REPEAT_START,
    RepeatScores,
    check_item_numbers,
    repeat_scores,
    straightened_repeats,
)

LOGIT_SCALE = 12.0
"""Initial score of a cosine of 1."""
NORM_EPSILON = 1e-4
"""Added to squared norms, since a state can be 0."""


class LinearScores(Recommender, ABC):
    """A recommender whose scores are linear in the user's state, or in its direction.

    How the state is computed is left to subclasses.

    Args:
        repeat_feature: Add a learned score to items that were read (they repeat). It depends on
            repeat count and age.
        filter_sketch: Start with a score of about -20 for items that were read (they do not
            repeat). The score is learned.
        cosine: Score by cosine similarity times a learned `logit_scale`. Input vectors then have
            norm 1.
        settings: Settings of `Recommender`.
    """

    vectors: nn.Parameter  # [items, dim] input vectors
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
        self.has_repeat_feature = self.counts_repeats = repeat_feature or filter_sketch
        if self.has_repeat_feature:
            check_item_numbers(self.items)
            start = REPEAT_START if repeat_feature else FILTER_START
            self.repeat_params = nn.Parameter(torch.tensor(start))
        if cosine:
            self.logit_scale = nn.Parameter(torch.tensor(LOGIT_SCALE).log())

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """[items, user_dim] the vectors that score."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Return scores of items [rows, n]."""
        state, repeats = self._parts(user)
        vectors = embed(self.table, items)
        scores = self._scaled((vectors @ state[:, :, None])[:, :, 0], vectors)
        scores = scores + embed(self.bias, items)[:, :, 0]
        return scores + repeats.of(items) if self.has_repeat_feature else scores

    def predict_all(self, user: Tensor) -> Tensor:
        """Return scores of every item, [rows, items], by one matrix product."""
        state, repeats = self._parts(user)
        table = self.table
        scores = self._scaled(state @ table.T, table) + self.bias[:, 0]
        if not self.has_repeat_feature:
            return scores
        return scores.scatter_add(1, repeats.item, repeats.score)

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """Return scores [rows, n] of items [n] for all users, by one matrix product."""
        state, repeats = self._parts(user)
        vectors = embed(self.table, items)
        scores = self._scaled(state @ vectors.T, vectors) + embed(self.bias, items)[:, 0]
        return scores + repeats.of_some(items) if self.has_repeat_feature else scores

    def with_repeat_scores(
        self, state: Tensor, evidence: Evidence, rounding: Rounding = identity
    ) -> Tensor:
        """Return the state after a sketch with the repeat scores of its entries, if any."""
        if not self.has_repeat_feature:
            return state
        weight = straightened_repeats(self.repeat_params, evidence)
        return self.append_repeat_scores(state, evidence.item, weight, evidence.age, rounding)

    def append_repeat_scores(
        self,
        state: Tensor,
        item: Tensor,
        weight: Tensor,
        age: Tensor,
        rounding: Rounding = identity,
    ) -> Tensor:
        """Return states [rows, dim + 2n]: the state, items as floats, and their repeat scores."""
        if not self.has_repeat_feature:
            return state
        repeats = repeat_scores(self.repeat_params, item, weight, age)
        return torch.cat([state, repeats.item.to(state.dtype), rounding(repeats.score)], 1)

    def _parts(self, user: Tensor) -> tuple[Tensor, RepeatScores]:
        """Split a user vector into the state, with norm 1 for cosines, and repeat scores."""
        shared = len(self.user_prior)
        state, (item, score) = user[:, :shared], user[:, shared:].chunk(2, 1)
        return (_normalised(state) if self.cosine else state), RepeatScores(item.long(), score)

    def _scaled(self, products: Tensor, vectors: Tensor) -> Tensor:
        """Return scores from products of states with vectors: cosines times `logit_scale`, if any.

        The vectors themselves are not normalised, so the matrix product can run in chunks.
        """
        return products * (self.logit_scale.exp() / _norm(vectors)) if self.cosine else products

    def input_vectors(self, items: Tensor) -> Tensor:
        """Return the input embedding of items, [rows, n, dim]."""
        vectors = embed(self.vectors, items)
        return _normalised(vectors) if self.cosine else vectors

    @property
    def elements_per_row(self) -> int:
        """Number of elements per row in the widest tensor: the scores of all items."""
        return self.items

    def embedding(self, items: Tensor) -> Tensor:
        """Return the detached input embedding of items, [rows, n, dim]."""
        return self.input_vectors(items).detach()


def _norm(vectors: Tensor) -> Tensor:
    """[...] Euclidean norms of vectors [..., dim]."""
    return (vectors.square().sum(-1) + NORM_EPSILON).sqrt()


def _normalised(vectors: Tensor) -> Tensor:
    """[..., dim] vectors divided by their norms."""
    return vectors / _norm(vectors)[..., None]
