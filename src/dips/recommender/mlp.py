"""Neural collaborative filtering by a small network over the user's and the item's vector."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.recommender.losses import Loss
from dips.recommender.ncf import ITEM_TABLES, NCF


@final
class MLP(NCF):
    """A recommender with a network of one hidden layer over user and item vector (NCF's MLP).

    Args:
        loss: The training loss.
        dim: Length of user and item vectors, and number of hidden units.
        generator: Source of the initial parameters.
        settings: Settings of `NCF`.
    """

    item_tables: ClassVar[tuple[str, ...]] = ITEM_TABLES

    def __init__(
        self,
        *,
        loss: Loss,
        dim: int = 32,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        generator = generator or torch.Generator().manual_seed(0)
        scale = dim**-0.5
        super().__init__(
            loss=loss, dim=dim, user_dim=dim, spread=scale, generator=generator, **settings
        )

        def matrix(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, dim, generator=generator) * scale)

        self.user_weight, self.item_weight = matrix(dim), matrix(dim)
        self.hidden_bias = nn.Parameter(torch.zeros(dim))
        self.output_weight = matrix(loss.channels)

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Return the network's output plus the item bias; the activation is SiLU (smooth)."""
        item = self.item_vectors(items) @ self.item_weight.T
        pair = (user @ self.user_weight.T)[:, None, :] + item
        score = nn.functional.silu(pair + self.hidden_bias) @ self.output_weight.T
        return self.intercept(items) + (score if self.loss.channels > 1 else score[..., 0])
