"""SASRec: items attend to those before them (Kang and McAuley 2018), positions counted backwards.

Written from the paper, but for its positions: those are counted from the newest item, so a short
sketch looks like the end of a history, and one pass gives the states after all prefixes.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.data.side_information import NOTHING, SideInformation
from dips.numerics.descent import Rounding, keep
from dips.recommender.base import Evidence, Recommender
from dips.recommender.linear_scores import Linear
from dips.recommender.losses import FAR, Loss
from dips.recommender.sequential import Sequential

LAYERS, WINDOW = 2, 64
"""How often items look back, and at how many of the last ones, themselves included."""
QUIET = 0.3
"""At the start: how loud the noise beside a mean of what was read is."""


@final
class SASRec(Linear, Sequential):
    """The state is what the newest item has gathered; without any item it is the prior.

    An entry of weight z is seen z times as much, and is the newest with chance z. At the start
    items gather about a mean of those before them, the last ones counting most.
    """

    undecayed: ClassVar[tuple[str, ...]] = (
        *Recommender.undecayed, "gain", "shift", "recency", "hidden_shift", "output_shift",
    )  # fmt: skip

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
        super().__init__(items=items, loss=loss, dim=dim, **settings)
        del sides  # attention sees items alone
        generator = generator or torch.Generator().manual_seed(0)
        scale = dim**-0.5

        def matrices(loudness: float = 1.0) -> Tensor:
            spread: float = scale * loudness
            return torch.randn(LAYERS, dim, dim, generator=generator) * spread

        self.vectors = nn.Parameter(torch.randn(items, dim, generator=generator) * scale)
        self.rebuild_inputs, self.asked = nn.Parameter(matrices()), nn.Parameter(matrices())
        self.told = nn.Parameter(torch.eye(dim) + matrices(QUIET))
        self.hidden, self.output = nn.Parameter(matrices()), nn.Parameter(matrices(QUIET))
        self.hidden_shift = nn.Parameter(torch.zeros(LAYERS, dim))
        self.output_shift = nn.Parameter(torch.zeros(LAYERS, dim))
        distance = torch.arange(WINDOW)
        self.recency = nn.Parameter((-(1 + distance).log()).repeat(LAYERS, 1))
        self.gain = nn.Parameter(torch.ones(2 * LAYERS + 1, dim))
        self.shift = nn.Parameter(torch.zeros(2 * LAYERS + 1, dim))
        self.bias = nn.Parameter(torch.zeros(items, 1))

    @property
    def table(self) -> Tensor:
        """[items, dim] the vectors that are read score as well."""
        return self.vectors

    def read(self, evidence: Evidence, rounding: Rounding = keep) -> Tensor:
        """Entries of weight 0 are put at the end, where nothing that counts looks."""
        order = (evidence.weight <= 0).to(torch.int8).argsort(dim=1, stable=True)
        weight = evidence.weight.gather(1, order)
        gathered = self._gathered(evidence.item.gather(1, order), weight)
        state = self.user_prior.expand(len(weight), -1)
        for own, share in zip(gathered.unbind(1), weight.unbind(1), strict=True):
            state = state + share[:, None] * (own - state)
        return self.with_own(rounding(state), evidence, rounding)

    def states(self, items: Tensor, drop: Rounding = keep) -> Tensor:
        """What every item has gathered, in one pass."""
        first = self.user_prior.expand(len(items), 1, -1)
        weight = torch.ones(items.shape, dtype=first.dtype, device=first.device)
        return drop(torch.cat([first, self._gathered(items, weight, drop)], 1))

    def _gathered(self, items: Tensor, weight: Tensor, drop: Rounding = keep) -> Tensor:
        """[rows, n, dim] what each item knows of itself and of those before it."""
        if not items.shape[1]:
            return self.user_prior.new_zeros(*items.shape, len(self.user_prior))
        flow = drop(self.shown(items) * len(self.user_prior) ** 0.5)
        for layer in range(LAYERS):
            flow = flow + drop(self._look_back(self._even(flow, 2 * layer), weight, layer))
            inner = self._even(flow, 2 * layer + 1) @ self.hidden[layer] + self.hidden_shift[layer]
            flow = flow + drop(inner.relu() @ self.output[layer] + self.output_shift[layer])
        return self._even(flow, 2 * LAYERS)

    def _even(self, flow: Tensor, place: int) -> Tensor:
        """Mean 0 and variance 1 over the dimensions, then the learned ones of this place."""
        return nn.functional.layer_norm(flow, flow.shape[-1:], self.gain[place], self.shift[place])

    def _look_back(self, flow: Tensor, weight: Tensor, layer: int) -> Tensor:
        """Attention to the last WINDOW items, in blocks: the cost grows with n, not its square."""
        rows, n, dim = flow.shape
        block = min(n, WINDOW)
        blocks = -(-n // block)
        missing = blocks * block - n
        flow = nn.functional.pad(flow, (0, 0, 0, missing)).view(rows, blocks, block, dim)
        weight = nn.functional.pad(weight, (0, missing)).view(rows, blocks, block, 1)
        asked, told = flow @ self.asked[layer], flow @ self.told[layer]
        place = torch.arange(block, device=flow.device)
        past = place
        if blocks > 1:
            asked, told, weight = (_with_before(field) for field in (asked, told, weight))
            past = torch.cat([place - block, place])
        distance = place[:, None] - past
        seen = (distance >= 0) & (distance < WINDOW)
        recency = self.recency[layer][distance.clamp(0, WINDOW - 1)]
        match = (flow @ self.rebuild_inputs[layer]) @ asked.transpose(-1, -2) * dim**-0.5 + recency
        match = match.masked_fill(~seen, FAR)
        share = (match - match.amax(-1, keepdim=True).detach()).exp() * weight.transpose(-1, -2)
        mixed: Tensor = (share @ told) / share.sum(-1, keepdim=True).clamp_min(1e-30)
        return mixed.view(rows, blocks * block, dim)[:, :n]


def _with_before(field: Tensor) -> Tensor:
    """[rows, blocks, 2 block, ...]: every block after the one before it; nothing before the first.

    What is not there has weight 0, like everything that is 0 here.
    """
    before = nn.functional.pad(field, (0, 0, 0, 0, 1, 0))[:, :-1]
    return torch.cat([before, field], 2)
