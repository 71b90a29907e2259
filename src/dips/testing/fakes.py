"""Stand-ins for a recommender: small, exact and always the same."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from dips.numerics.hashing import uniform
from dips.recommender.base import Recommender
from dips.recommender.losses import Loss, SquaredError
from dips.sketch.records import Candidates

GRID = 8.0
"""The fakes count in eighths, so their sums are exact in any order."""


def item_vectors(items: Tensor, dim: int) -> Tensor:
    """[..., dim] a vector per item in eighths between -1 and 1; a function of the item alone."""
    place = torch.arange(dim, device=items.device)
    return (uniform(items[..., None], place) * 2 * GRID - GRID).round() / GRID


@final
class FakeReading:
    """A user who was fitted to some candidates: squared errors of a linear score."""

    def __init__(self, signals: FakeSignals, user: Tensor) -> None:
        self._signals, self._user = signals, user

    def losses(self) -> Tensor:
        """[users, candidates] squared errors."""
        return self._error() ** 2

    def influences(self, damping: float) -> Tensor:
        """[users, candidates] with a dense Hessian: there are few dimensions."""
        vectors = self._signals.embedding()
        present = self._signals.candidates.present.double()[:, :, None]
        slopes = 2 * self._error()[:, :, None] * vectors
        hessian = 2 * (vectors * present).transpose(1, 2) @ vectors
        ridge = damping * torch.eye(vectors.shape[2], dtype=vectors.dtype, device=vectors.device)
        solved: Tensor = torch.linalg.solve(hessian + ridge, (slopes * present).sum(1))
        return -(slopes * solved[:, None, :]).sum(2)

    def predicted(self) -> Tensor:
        """[users, candidates]."""
        return (self._signals.embedding() * self._user[:, None, :]).sum(2)

    def _error(self) -> Tensor:
        return self.predicted() - self._signals.candidates.rating.double()


@final
class FakeSignals:
    """What a recommender would say of some candidates, without one.

    The item vectors are hashes; the sketch is read as candidates of weight 1 that are no arrivals.
    """

    def __init__(self, candidates: Candidates, *, arrivals: int = 1, dim: int = 4) -> None:
        self.candidates, self.arrivals, self.dim = candidates, arrivals, dim

    def loss(self) -> Tensor:
        """[users, candidates]."""
        return self._before().losses()

    def embedding(self) -> Tensor:
        """[users, candidates, dim]."""
        return item_vectors(self.candidates.item, self.dim)

    def residual(self) -> Tensor:
        """[users, candidates]."""
        return -2 * self._before()._error()

    def predicted_score(self) -> Tensor:
        """[users, candidates]."""
        return self._before().predicted()

    def read(self, weights: Tensor) -> FakeReading:
        """One step towards what these candidates were rated."""
        pull = (weights * self.candidates.present * self.candidates.rating).double()
        return FakeReading(self, (pull[:, :, None] * self.embedding()).sum(1) / GRID)

    def _before(self) -> FakeReading:
        seen = self.candidates.seen[:, None] - self.arrivals
        return self.read((self.candidates.position < seen).double())


@final
class FakeRecommender(Recommender):
    """About the least that a recommender can be: scores linear in hashed item vectors."""

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
        """The item's vector times the user's, scaled for each channel."""
        score = (self.table[items] * user[:, None, :]).sum(2)
        return score * self.scale[0] if self.loss.channels == 1 else score[..., None] * self.scale

    def embedding(self, items: Tensor) -> Tensor:
        """The item's vector."""
        return self.table[items]
