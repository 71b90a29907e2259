"""A session-based recommender with a memory: one GRU reads the session, another one the sketch.

The paper's modified GRU4Rec: both states together, one after the other, go into the scores.
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

LENGTH = 4
"""Items of a session; at a prediction 0 to 3 of the current one are known."""


@final
class SessionGRU(Linear):
    """Reads evidence whose last LENGTH - 1 places are the session's, and those before the sketch's.

    The user's state is both readers' states; items score with the vector that is read for the
    session's, and with a learned turn of it for the sketch's.
    """

    undecayed: ClassVar[tuple[str, ...]] = (
        *Recommender.undecayed,
        *(f"{reader}.{name}" for reader in ("now", "past") for name in GRULayer.undecayed),
    )

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int = 32,
        generator: torch.Generator | None = None,
        sides: SideInformation = NOTHING,
        **settings: Any,
    ) -> None:
        super().__init__(items=items, loss=loss, dim=dim, user_dim=2 * dim, **settings)
        del sides  # the recurrences see items alone
        generator = generator or torch.Generator().manual_seed(0)
        self.vectors = nn.Parameter(torch.randn(items, dim, generator=generator) * dim**-0.5)
        self.now, self.past = GRULayer(dim, generator), GRULayer(dim, generator)
        self.turn = nn.Parameter(torch.eye(dim))
        self.bias = nn.Parameter(torch.zeros(items, 1))

    @property
    def table(self) -> Tensor:
        """[items, 2 dim] what meets the session's state, and what meets the sketch's."""
        return torch.cat([self.vectors, self.vectors @ self.turn], 1)

    def read(self, evidence: Evidence, rounding: Rounding = keep) -> Tensor:
        """Both from their own start: a reader to whom nothing is shown stays there."""
        vectors, weight = self.shown(evidence.item), evidence.weight
        sketched = weight.shape[1] - (LENGTH - 1)
        now, past = self.user_prior.expand(len(weight), -1).chunk(2, 1)
        now = self.now.read(now, vectors[:, sketched:], weight[:, sketched:], rounding)
        past = self.past.read(past, vectors[:, :sketched], weight[:, :sketched], rounding)
        return self.with_own(torch.cat([now, past], 1), evidence, rounding)
