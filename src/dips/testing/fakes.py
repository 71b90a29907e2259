"""Fakes of a recommender and of its signals: small, exact and deterministic."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from dips.numerics.hashing import uniform
from dips.recommender.base import Recommender
from dips.recommender.losses import Loss, SquaredError
from dips.sketch.records import Candidates
from dips.sketch.signals import Reading, Signals

GRID = 8.0
"""Values of the fakes are multiples of 1 / GRID, so their sums are exact in any order."""


def item_vectors(items: Tensor, dim: int) -> Tensor:
    """Return a vector per item, [..., dim], in eighths between -1 and 1: a hash of the item."""
    place = torch.arange(dim, device=items.device)
    return (uniform(items[..., None], place) * 2 * GRID - GRID).round() / GRID


def fake_signals(candidates: Candidates, *, arrivals: int = 1, dim: int = 4) -> Signals:
    """Return signals about some candidates without a recommender: hashed vectors, squared error.

    Args:
        candidates: The candidates of a refresh.
        arrivals: How many of the newest candidates of each user were not in the sketch before.
        dim: Length of an item's vector.

    Returns:
        Signals that are functions of the candidates alone; sums in them are exact.

    Example:
        >>> from dips.testing import random_candidates
        >>> sketch, candidates = random_candidates(users=2, size=3, period=2)
        >>> fake_signals(candidates, arrivals=2).loss.shape
        torch.Size([2, 5])
    """
    vectors = item_vectors(candidates.item, dim)
    present, rating = candidates.present, candidates.rating.double()

    def adapt(weights: Tensor) -> Tensor:
        """[users, dim] one gradient step towards the weighted ratings."""
        share = (weights * present * candidates.rating).double()
        return (share[:, :, None] * vectors).sum(1) / GRID

    def predict(user: Tensor) -> Tensor:
        return (vectors * user[:, None, :]).sum(2)

    def read(weights: Tensor) -> Reading:
        error = predict(adapt(weights)) - rating

        def influences(damping: float) -> Tensor:
            """Solve with a dense Hessian: there are few dimensions."""
            there = present.double()[:, :, None]
            slopes = 2 * error[:, :, None] * vectors
            hessian = 2 * (vectors * there).transpose(1, 2) @ vectors
            ridge = damping * torch.eye(dim, dtype=vectors.dtype, device=vectors.device)
            solved: Tensor = torch.linalg.solve(hessian + ridge, (slopes * there).sum(1))
            return -(slopes * solved[:, None, :]).sum(2)

        return Reading(lambda: error**2, influences)

    def predicted_score() -> Tensor:
        kept = candidates.position < candidates.seen[:, None] - arrivals
        return predict(adapt(kept.double()))

    return Signals(
        {
            "loss": lambda: (predicted_score() - rating) ** 2,
            "residual": lambda: -2 * (predicted_score() - rating),
            "predicted_score": predicted_score,
            "embedding": lambda: vectors,
        },
        read,
    )


@final
class FakeRecommender(Recommender):
    """A minimal recommender: scores are linear in hashed item vectors.

    Example:
        >>> import torch
        >>> model = FakeRecommender(items=8, dim=4)
        >>> model.predict(torch.ones(2, 4), torch.tensor([[1], [5]])).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        *,
        items: int = 8,
        dim: int = 4,
        loss: Loss | None = None,
        inner_lr: float = 0.05,
        inner_steps: int = 5,
        prior_penalty: float = 0.0,
    ) -> None:
        super().__init__(
            items=items,
            user_dim=dim,
            loss=loss or SquaredError(),
            inner_lr=inner_lr,
            inner_steps=inner_steps,
            prior_penalty=prior_penalty,
        )
        channels = torch.arange(1, self.loss.channels + 1).float() / self.loss.channels
        self.scale = nn.Parameter(channels)
        self.register_buffer("table", item_vectors(torch.arange(items), dim).float())

    table: Tensor

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Return item vector times user vector, scaled for each channel."""
        score = (self.table[items] * user[:, None, :]).sum(2)
        return score * self.scale[0] if self.loss.channels == 1 else score[..., None] * self.scale

    def embedding(self, items: Tensor) -> Tensor:
        """Return the item vector."""
        return self.table[items]
