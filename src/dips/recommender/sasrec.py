"""SASRec: self-attention over the items before each item (Kang and McAuley 2018).

Written from the paper, except for positions: they are counted from the newest item. A short sketch
then looks like the end of a history, and one pass gives the states after all prefixes.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, identity
from dips.recommender.base import Evidence, Recommender
from dips.recommender.linear_scores import LinearScores
from dips.recommender.losses import MASKED_SCORE, Loss
from dips.recommender.sequential import Sequential

LAYERS = 2
"""Number of attention layers."""
WINDOW = 64
"""Number of newest items that an item attends to, itself included."""
NOISE = 0.3
"""Initial scale of the random part of value and output matrices."""


@final
class SASRec(LinearScores, Sequential):
    """A recommender whose user vector is the output at the newest item; the prior without items.

    An entry of weight z has z times the attention, and moves the state z of the way to its output.
    Initially outputs are about weighted means of the items before, the last ones with the largest
    weights.

    Args:
        items: Number of items.
        loss: The training loss.
        dim: Length of item vectors and of the state.
        generator: Source of the initial parameters.
        settings: Settings of `LinearScores`.
    """

    no_weight_decay: ClassVar[tuple[str, ...]] = (
        *Recommender.no_weight_decay,
        "norm_weight", "norm_bias", "distance_bias", "hidden_bias", "output_bias",
    )  # fmt: skip

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int = 32,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(items=items, loss=loss, dim=dim, **settings)
        generator = generator or torch.Generator().manual_seed(0)
        scale = dim**-0.5

        def matrices(factor: float = 1.0) -> Tensor:
            spread: float = scale * factor
            return torch.randn(LAYERS, dim, dim, generator=generator) * spread

        self.vectors = nn.Parameter(torch.randn(items, dim, generator=generator) * scale)
        self.query, self.key = nn.Parameter(matrices()), nn.Parameter(matrices())
        self.value = nn.Parameter(torch.eye(dim) + matrices(NOISE))
        self.hidden, self.output = nn.Parameter(matrices()), nn.Parameter(matrices(NOISE))
        self.hidden_bias = nn.Parameter(torch.zeros(LAYERS, dim))
        self.output_bias = nn.Parameter(torch.zeros(LAYERS, dim))
        distance = torch.arange(WINDOW)
        self.distance_bias = nn.Parameter((-(1 + distance).log()).repeat(LAYERS, 1))
        self.norm_weight = nn.Parameter(torch.ones(2 * LAYERS + 1, dim))
        self.norm_bias = nn.Parameter(torch.zeros(2 * LAYERS + 1, dim))
        self.bias = nn.Parameter(torch.zeros(items, 1))

    @property
    def table(self) -> Tensor:
        """[items, dim] the vectors that score: those that are read."""
        return self.vectors

    def read(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return the state after a sketch; entries of weight 0 come last, where none attends."""
        order = (evidence.weight <= 0).to(torch.int8).argsort(dim=1, stable=True)
        weight = evidence.weight.gather(1, order)
        outputs = self._outputs(evidence.item.gather(1, order), weight)
        state = self.user_prior.expand(len(weight), -1)
        for output, share in zip(outputs.unbind(1), weight.unbind(1), strict=True):
            state = state + share[:, None] * (output - state)
        return self.with_repeat_scores(rounding(state), evidence, rounding)

    def states(self, items: Tensor, dropout: Rounding = identity) -> Tensor:
        """Return the states after every prefix, [rows, n + 1, dim], in one pass."""
        first = self.user_prior.expand(len(items), 1, -1)
        weight = torch.ones(items.shape, dtype=first.dtype, device=first.device)
        return dropout(torch.cat([first, self._outputs(items, weight, dropout)], 1))

    def _outputs(self, items: Tensor, weight: Tensor, dropout: Rounding = identity) -> Tensor:
        """[rows, n, dim] the output at each item."""
        if not items.shape[1]:
            return self.user_prior.new_zeros(*items.shape, len(self.user_prior))
        x = dropout(self.input_vectors(items) * len(self.user_prior) ** 0.5)
        for layer in range(LAYERS):
            x = x + dropout(self._attend(self._layer_norm(x, 2 * layer), weight, layer))
            inner = self._layer_norm(x, 2 * layer + 1) @ self.hidden[layer]
            inner = inner + self.hidden_bias[layer]
            x = x + dropout(inner.relu() @ self.output[layer] + self.output_bias[layer])
        return self._layer_norm(x, 2 * LAYERS)

    def _layer_norm(self, x: Tensor, place: int) -> Tensor:
        """Apply the layer normalisation of this place."""
        weight, bias = self.norm_weight[place], self.norm_bias[place]
        return nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    def _attend(self, x: Tensor, weight: Tensor, layer: int) -> Tensor:
        """Attend to the last WINDOW items, in blocks: the cost is linear in n."""
        rows, n, dim = x.shape
        block = min(n, WINDOW)
        blocks = -(-n // block)
        missing = blocks * block - n
        x = nn.functional.pad(x, (0, 0, 0, missing)).view(rows, blocks, block, dim)
        weight = nn.functional.pad(weight, (0, missing)).view(rows, blocks, block, 1)
        key, value = x @ self.key[layer], x @ self.value[layer]
        place = torch.arange(block, device=x.device)
        past = place
        if blocks > 1:
            key, value, weight = (_with_previous(field) for field in (key, value, weight))
            past = torch.cat([place - block, place])
        distance = place[:, None] - past
        seen = (distance >= 0) & (distance < WINDOW)
        bias = self.distance_bias[layer][distance.clamp(0, WINDOW - 1)]
        logits = (x @ self.query[layer]) @ key.transpose(-1, -2) * dim**-0.5 + bias
        logits = logits.masked_fill(~seen, MASKED_SCORE)
        share = (logits - logits.amax(-1, keepdim=True).detach()).exp() * weight.transpose(-1, -2)
        mixed: Tensor = (share @ value) / share.sum(-1, keepdim=True).clamp_min(1e-30)
        return mixed.view(rows, blocks * block, dim)[:, :n]


def _with_previous(field: Tensor) -> Tensor:
    """[rows, blocks, 2 block, ...] each block after the previous one; zeros before the first.

    Zeros have weight 0.
    """
    before = nn.functional.pad(field, (0, 0, 0, 0, 1, 0))[:, :-1]
    return torch.cat([before, field], 2)
