"""GRU4Rec: a gated recurrent unit reads items in order (Hidasi et al. 2016; Top-k gains, 2018).

Written from the papers. The loss decides about training and negatives.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, identity
from dips.recommender.base import Evidence, Recommender
from dips.recommender.gru_layer import GRULayer
from dips.recommender.linear_scores import LinearScores
from dips.recommender.losses import Loss
from dips.recommender.sequential import Sequential


@final
class GRU(LinearScores, Sequential):
    """A recommender whose user vector is the state of a GRU that starts at the prior.

    Args:
        items: Number of items.
        loss: The training loss.
        dim: Length of item vectors and of the state.
        tie_embeddings: Whether the vectors that are read also score; False adds output vectors.
        generator: Source of the initial parameters.
        settings: Settings of `LinearScores`.
    """

    no_weight_decay: ClassVar[tuple[str, ...]] = (
        *Recommender.no_weight_decay,
        *(f"layer.{name}" for name in GRULayer.no_weight_decay),
    )

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int = 32,
        tie_embeddings: bool = True,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(items=items, loss=loss, dim=dim, **settings)
        generator = generator or torch.Generator().manual_seed(0)

        def vectors() -> nn.Parameter:
            return nn.Parameter(torch.randn(items, dim, generator=generator) * dim**-0.5)

        self.vectors = vectors()
        self.layer = GRULayer(dim, generator)
        self.bias = nn.Parameter(torch.zeros(items, 1))
        self.tie_embeddings = tie_embeddings
        if not tie_embeddings:
            self.output_vectors = vectors()

    @property
    def table(self) -> Tensor:
        """[items, dim] the vectors that score."""
        return self.vectors if self.tie_embeddings else self.output_vectors

    def read(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return the state after one recurrent step for every entry."""
        start = self.user_prior.expand(len(evidence.item), -1)
        state = self.layer.read(start, self.input_vectors(evidence.item), evidence.weight, rounding)
        return self.with_repeat_scores(state, evidence, rounding)

    def states(self, items: Tensor, dropout: Rounding = identity) -> Tensor:
        """Return the states after every prefix, [rows, n + 1, dim], in one call."""
        start = self.user_prior.expand(len(items), -1)
        if not items.shape[1]:
            return dropout(start[:, None])
        later = self.layer.states(start, dropout(self.input_vectors(items)))
        return dropout(torch.cat([start[:, None], later], 1))
