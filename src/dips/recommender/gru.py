"""GRU4Rec: a gated recurrent unit reads items in order (Hidasi et al. 2016; Top-k gains, 2018).

Written from the papers. How it is trained, and on which negatives, is the loss's business.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.data.sides import NOTHING, Sides
from dips.numerics.descent import Settle, keep
from dips.recommender.base import Evidence, Recommender
from dips.recommender.losses import Loss
from dips.recommender.ncf import rows_of
from dips.recommender.sequential import Sequential

QUIET, LEAN = 0.3, 0.5
"""At the start: how loud the noise beside that mean is, and how much the update gate keeps."""


@final
class GRU(Sequential):
    """Scores are the state times the item's vector, plus the item's bias; it starts at the prior.

    `tied`: the vectors that are read are those that score; else items have another one for that.
    An entry of weight z moves the state z of the way, so reading can be differentiated in z. At the
    start the state is about a mean of the vectors that were read, the last ones counting most:
    where items are rare, what goes together is found sooner.
    """

    undecayed: ClassVar[tuple[str, ...]] = (*Recommender.undecayed, "item_shift", "state_shift")

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int = 32,
        tied: bool = True,
        generator: torch.Generator | None = None,
        sides: Sides = NOTHING,
        **settings: Any,
    ) -> None:
        super().__init__(items=items, loss=loss, dim=dim, **settings)
        del sides  # the recurrence sees items alone
        generator = generator or torch.Generator().manual_seed(0)
        scale = dim**-0.5

        def vectors() -> nn.Parameter:
            return nn.Parameter(torch.randn(items, dim, generator=generator) * scale)

        def gates(*shape: int) -> nn.Parameter:
            """For reset, update and new state, one below the other."""
            spread = torch.rand(3 * dim, *shape, generator=generator)
            return nn.Parameter((2 * spread - 1) * scale)

        self.vectors = vectors()
        self.from_item, self.from_state = gates(dim), gates(dim)
        self.item_shift, self.state_shift = gates(), gates()
        with torch.no_grad():
            for new in (self.from_item[2 * dim :], self.from_state[2 * dim :]):
                new *= QUIET
            self.from_item[2 * dim :] += torch.eye(dim)
            self.item_shift[dim : 2 * dim] += LEAN
        self.bias = nn.Parameter(torch.zeros(items, 1))
        self.tied = tied
        if not tied:
            self.scoring = vectors()

    @property
    def table(self) -> Tensor:
        """[items, dim] the vectors that score."""
        return self.vectors if self.tied else self.scoring

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Linear in the state."""
        scores = (rows_of(self.table, items) @ user[:, :, None])[:, :, 0]
        return scores + rows_of(self.bias, items)[:, :, 0]

    def predict_all(self, user: Tensor) -> Tensor:
        """One product of matrices."""
        return user @ self.table.T + self.bias[:, 0]

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """One product of matrices."""
        return user @ rows_of(self.table, items).T + rows_of(self.bias, items)[:, 0]

    @property
    def breadth(self) -> int:
        """Scores of all items."""
        return self.items

    def embedding(self, items: Tensor) -> Tensor:
        """The vector that is read."""
        return rows_of(self.vectors, items).detach()

    def read(self, evidence: Evidence, settle: Settle = keep) -> Tensor:
        """One step of the recurrence for every entry."""
        arriving = rows_of(self.vectors, evidence.item) @ self.from_item.T + self.item_shift
        state = self.user_prior.expand(len(evidence.item), -1)
        for arrival, weight in zip(arriving.unbind(1), evidence.weight.unbind(1), strict=True):
            state = settle(state + weight[:, None] * (self._step(state, arrival) - state))
        return state

    def states(self, items: Tensor, drop: Settle = keep) -> Tensor:
        """By torch's own recurrence: the same steps, in one call."""
        start = self.user_prior.expand(1, len(items), -1).contiguous()
        first = start.transpose(0, 1)
        if not items.shape[1]:
            return drop(first)
        weights: list[Tensor] = [self.from_item, self.from_state, self.item_shift, self.state_shift]
        arriving = drop(rows_of(self.vectors, items))
        with warnings.catch_warnings():  # the weights lie apart: CUDA copies them together
            warnings.filterwarnings("ignore", message="RNN module weights are not part of")
            later, _ = torch.gru(arriving, start, weights, True, 1, 0.0, False, False, True)
        return drop(torch.cat([first, later], 1))

    def _step(self, state: Tensor, arrival: Tensor) -> Tensor:
        """The next state: old and new, mixed by the update gate."""
        reset, update, new = arrival.chunk(3, -1)
        was = (state @ self.from_state.T + self.state_shift).chunk(3, -1)
        gate = (update + was[1]).sigmoid()
        fresh = (new + (reset + was[0]).sigmoid() * was[2]).tanh()
        return gate * state + (1 - gate) * fresh
