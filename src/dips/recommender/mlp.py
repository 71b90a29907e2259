"""Neural collaborative filtering by a small network over the user's and the item's vector."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.recommender.losses import Loss
from dips.recommender.ncf import BY_ITEM, NCF


@final
class MLP(NCF):
    """Scores by a small network over the user's and the item's vector (the MLP form of NCF)."""

    by_item: ClassVar[tuple[str, ...]] = BY_ITEM

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

        self.from_user, self.from_item = matrix(dim), matrix(dim)
        self.middle = nn.Parameter(torch.zeros(dim))
        self.out = matrix(loss.channels)

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """One hidden layer on the pair, a smooth non-linearity, and the item's bias."""
        thing = self.rows(items) @ self.from_item.T
        pair = (user @ self.from_user.T)[:, None, :] + thing
        score = nn.functional.silu(pair + self.middle) @ self.out.T
        return self.intercept(items) + (score if self.loss.channels > 1 else score[..., 0])
