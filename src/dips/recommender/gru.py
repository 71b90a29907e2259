"""GRU4Rec: a gated recurrent unit reads items in order (Hidasi et al. 2016; Top-k gains, 2018).

Written from the papers. How it is trained, and on which negatives, is the loss's business.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.data.side_information import NOTHING, SideInformation
from dips.numerics.descent import Rounding, keep
from dips.recommender.base import Evidence, Recommender
from dips.recommender.gru_layer import GRULayer
from dips.recommender.linear_scores import Linear
from dips.recommender.losses import Loss
from dips.recommender.sequential import Sequential


@final
class GRU(Linear, Sequential):
    """Scores are the state times the item's vector, plus the item's bias; it starts at the prior.

    `tied`: the vectors that are read are those that score; else items have another one for that.
    """

    undecayed: ClassVar[tuple[str, ...]] = (
        *Recommender.undecayed,
        *(f"reader.{name}" for name in GRULayer.undecayed),
    )

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int = 32,
        tied: bool = True,
        generator: torch.Generator | None = None,
        sides: SideInformation = NOTHING,
        **settings: Any,
    ) -> None:
        super().__init__(items=items, loss=loss, dim=dim, **settings)
        del sides  # the recurrence sees items alone
        generator = generator or torch.Generator().manual_seed(0)

        def vectors() -> nn.Parameter:
            return nn.Parameter(torch.randn(items, dim, generator=generator) * dim**-0.5)

        self.vectors = vectors()
        self.reader = GRULayer(dim, generator)
        self.bias = nn.Parameter(torch.zeros(items, 1))
        self.tied = tied
        if not tied:
            self.scoring = vectors()

    @property
    def table(self) -> Tensor:
        """[items, dim] the vectors that score."""
        return self.vectors if self.tied else self.scoring

    def read(self, evidence: Evidence, rounding: Rounding = keep) -> Tensor:
        """One step of the recurrence for every entry."""
        start = self.user_prior.expand(len(evidence.item), -1)
        state = self.reader.read(start, self.shown(evidence.item), evidence.weight, rounding)
        return self.with_own(state, evidence, rounding)

    def states(self, items: Tensor, drop: Rounding = keep) -> Tensor:
        """The same steps, in one call."""
        start = self.user_prior.expand(len(items), -1)
        if not items.shape[1]:
            return drop(start[:, None])
        later = self.reader.states(start, drop(self.shown(items)))
        return drop(torch.cat([start[:, None], later], 1))
