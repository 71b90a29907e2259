"""The paper's modified GRU4Rec: one GRU reads the current session, another one the sketch."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, identity
from dips.recommender.base import Evidence, Recommender
from dips.recommender.gru_layer import GRULayer
from dips.recommender.linear_scores import LinearScores
from dips.recommender.losses import Loss

LENGTH = 4
"""Number of items of a session; a prediction knows the first 0 to 3 of the current session."""


@final
class SessionGRU(LinearScores):
    """A recommender whose user vector concatenates the states of two GRUs.

    The last LENGTH - 1 places of the evidence are the session, those before are the sketch. The
    session's state scores with the input vectors, the sketch's state with a learned projection of
    them.

    Args:
        items: Number of items.
        loss: The training loss.
        dim: Length of item vectors; the user vector has 2 dim elements.
        generator: Source of the initial parameters.
        settings: Settings of `LinearScores`.
    """

    no_weight_decay: ClassVar[tuple[str, ...]] = (
        *Recommender.no_weight_decay,
        *(f"session_layer.{name}" for name in GRULayer.no_weight_decay),
        *(f"sketch_layer.{name}" for name in GRULayer.no_weight_decay),
    )

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int = 32,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(items=items, loss=loss, dim=dim, user_dim=2 * dim, **settings)
        generator = generator or torch.Generator().manual_seed(0)
        self.vectors = nn.Parameter(torch.randn(items, dim, generator=generator) * dim**-0.5)
        self.session_layer, self.sketch_layer = GRULayer(dim, generator), GRULayer(dim, generator)
        self.sketch_projection = nn.Parameter(torch.eye(dim))
        self.bias = nn.Parameter(torch.zeros(items, 1))

    @property
    def table(self) -> Tensor:
        """[items, 2 dim] vectors that score with the session's state, then with the sketch's."""
        return torch.cat([self.vectors, self.vectors @ self.sketch_projection], 1)

    def read(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return both states, [rows, 2 dim]; each starts at its half of the prior."""
        vectors, weight = self.input_vectors(evidence.item), evidence.weight
        size = weight.shape[1] - (LENGTH - 1)
        session, sketch = self.user_prior.expand(len(weight), -1).chunk(2, 1)
        session = self.session_layer.read(session, vectors[:, size:], weight[:, size:], rounding)
        sketch = self.sketch_layer.read(sketch, vectors[:, :size], weight[:, :size], rounding)
        return self.with_repeat_scores(torch.cat([session, sketch], 1), evidence, rounding)
