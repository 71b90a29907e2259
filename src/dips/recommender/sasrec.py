"""SASRec: self-attention over the items before each item (Kang and McAuley 2018).

Written from the paper, except for positions: they are counted from the newest item. A short sketch
then looks like the end of a history, and one pass gives the states after all prefixes.

`read` takes entries of weight z. Weights of 1 are plain SASRec, and an entry of weight 0 has no
effect. In between, everything is differentiable in the weights:

- As a key of newer entries, an entry has z times the share of attention that it has at weight 1.
- The distance between two entries is 1 plus the weights of the entries between them.
- An entry attends to itself with weight 1, whatever its own z.
- The state moves z of the way to the output of the entry, from the oldest to the newest.

So in each layer the slope at weight 0 is the change that the entry makes if it is added, and the
slope at weight 1 is the change that it made.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, identity
from dips.recommender.base import Evidence, Recommender
from dips.recommender.linear_scores import LinearScores
from dips.recommender.losses import MASKED_SCORE, Loss
from dips.recommender.ncf import embed
from dips.recommender.sequential import Sequential

LAYERS = 2
"""Number of attention layers."""
WINDOW = 64
"""Number of newest items that an item attends to, itself included."""
NOISE = 0.3
"""Initial scale of the random part of value and output matrices."""
MAX_RATIO = 1e6
"""Bound of an entry's attention over that of all others: what single precision resolves."""


@final
class SASRec(LinearScores, Sequential):
    """A recommender whose user vector is the output at the newest item; the prior without items.

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
        """Return the state after weighted entries, [rows, dim]; the oldest entry comes first."""
        weight = evidence.weight
        outputs = self._outputs(evidence.item, weight)
        state = self.user_prior.expand(len(weight), -1)
        for output, share in zip(outputs.unbind(1), weight.unbind(1), strict=True):
            state = state + share[:, None] * (output - state)
        return self.with_repeat_scores(rounding(state), evidence, rounding)

    def states(self, items: Tensor, dropout: Rounding = identity) -> Tensor:
        """Return the states after every prefix, [rows, n + 1, dim], in one pass."""
        first = self.user_prior.expand(len(items), 1, -1)
        return dropout(torch.cat([first, self._outputs(items, None, dropout)], 1))

    def _outputs(
        self, items: Tensor, weight: Tensor | None, dropout: Rounding = identity
    ) -> Tensor:
        """[rows, n, dim] the output at each item; a weight of None is 1 for all."""
        if not items.shape[1]:
            return self.user_prior.new_zeros(*items.shape, len(self.user_prior))
        x = dropout(self.input_vectors(items) * len(self.user_prior) ** 0.5)
        for layer in range(LAYERS):
            normalised = self._layer_norm(x, 2 * layer)
            found = (
                self._attend(normalised, layer)
                if weight is None
                else self._attend_weighted(normalised, weight, layer)
            )
            x = x + dropout(found)
            inner = self._layer_norm(x, 2 * layer + 1) @ self.hidden[layer]
            inner = inner + self.hidden_bias[layer]
            x = x + dropout(inner.relu() @ self.output[layer] + self.output_bias[layer])
        return self._layer_norm(x, 2 * LAYERS)

    def _layer_norm(self, x: Tensor, place: int) -> Tensor:
        """Apply the layer normalisation of this place."""
        weight, bias = self.norm_weight[place], self.norm_bias[place]
        return nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    def _attend(self, x: Tensor, layer: int) -> Tensor:
        """Attend to the last WINDOW items, in blocks: the cost is linear in n."""
        rows, n, dim = x.shape
        block = min(n, WINDOW)
        blocks = -(-n // block)
        missing = blocks * block - n
        x = nn.functional.pad(x, (0, 0, 0, missing)).view(rows, blocks, block, dim)
        there = torch.ones(rows, n, dtype=x.dtype, device=x.device)
        weight = nn.functional.pad(there, (0, missing)).view(rows, blocks, block, 1)
        key, value = x @ self.key[layer], x @ self.value[layer]
        place = torch.arange(block, device=x.device)
        past = place
        if blocks > 1:
            key, value, weight = (_with_previous(field) for field in (key, value, weight))
            past = torch.cat([place - block, place])
        distance = place[:, None] - past
        seen = (distance >= 0) & (distance < WINDOW)
        bias = self.distance_bias[layer][distance.clamp(0, WINDOW - 1)]
        query = x @ self.query[layer]
        exponentials = _exponentials(query, key, bias, seen)
        mixed = _mean(exponentials * weight.transpose(-1, -2), value)
        return mixed.view(rows, blocks * block, dim)[:, :n]

    def _attend_weighted(self, x: Tensor, weight: Tensor, layer: int) -> Tensor:
        """Attend to weighted entries; WINDOW queries at once, so memory is linear in n.

        Args:
            x: Inputs of the entries, [rows, n, dim].
            weight: Their weights, [rows, n].
            layer: Which layer.

        Returns:
            [rows, n, dim]
        """
        n = x.shape[1]
        key, value = x @ self.key[layer], x @ self.value[layer]
        query = x @ self.query[layer]
        through = weight.cumsum(1)  # the weight of all entries up to each one
        before = through - weight
        place = torch.arange(n, device=x.device)
        found = []
        for low in range(0, n, WINDOW):
            high = min(low + WINDOW, n)
            older = place[:high] < place[low:high, None]
            own = place[:high] == place[low:high, None]
            apart = 1 + before[:, low:high, None] - through[:, None, :high]
            distance = torch.where(older, apart, 0)
            share = torch.where(own, 1, weight[:, None, :high] * _inside_window(distance))
            bias = _interpolated(self.distance_bias[layer], distance)
            exponentials = _exponentials(query[:, low:high], key[:, :high], bias, older | own)
            found.append(_mean(_linear_in_weight(exponentials, share), value[:, :high]))
        return torch.cat(found, 1)


def _exponentials(query: Tensor, key: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """Return exponentiated attention logits, [..., queries, keys]; the largest is 1.

    Args:
        query: [..., queries, dim].
        key: [..., keys, dim].
        bias: Added to the logits, [..., queries, keys].
        seen: Which keys a query attends to, [queries, keys].
    """
    logits = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + bias
    logits = logits.masked_fill(~seen, MASKED_SCORE)
    exponentials: Tensor = (logits - logits.amax(-1, keepdim=True).detach()).exp()
    return exponentials


def _mean(amount: Tensor, value: Tensor) -> Tensor:
    """Return means of values [..., queries, dim] for amounts [..., queries, keys] of attention."""
    mixed: Tensor = (amount @ value) / amount.sum(-1, keepdim=True).clamp_min(1e-30)
    return mixed


def _linear_in_weight(exponentials: Tensor, weight: Tensor) -> Tensor:
    """Return amounts of attention, such that the share of a key is linear in its weight.

    A key with exponentiated logit a, beside others of amount b, has the share a / (a + b) at weight
    1. At weight z it has z times this share. The amount that gives it is a z / (1 + (1 - z) a / b):
    0 at weight 0, and a at weight 1. So the slope of the mean at weight 0 is the change that the
    key makes. With the amount a z it would be (a + b) / b times as steep.

    Args:
        exponentials: Exponentiated logits, [..., queries, keys].
        weight: Weights of the keys, [..., queries, keys].
    """
    amount = exponentials * weight
    others = amount.sum(-1, keepdim=True) - amount
    ratio = (exponentials / others.clamp_min(1e-12)).clamp_max(MAX_RATIO)
    return amount / (1 + (1 - weight) * ratio)


def _interpolated(table: Tensor, distance: Tensor) -> Tensor:
    """Return values of a table [n] at distances of any shape, by Catmull-Rom splines.

    At a whole number it is the entry of the table. There the slope is half the difference of the
    two neighbours, from both sides. So the derivative is continuous up to a distance of n.
    """
    last = len(table) - 1
    before, after, beyond = (
        torch.cat([table[:1], table[:-1]]),
        *(torch.cat([table[shift:], table[-1:].expand(min(shift, last + 1))]) for shift in (1, 2)),
    )
    square = 2 * before - 5 * table + 4 * after - beyond
    cube = 3 * (table - after) + beyond - before
    powers = torch.stack([table, (after - before) / 2, square / 2, cube / 2], 1)
    distance = distance.clamp(0, last + 1)
    low = distance.detach().floor().clamp_max(last)
    t = distance - low
    value, slope, second, third = embed(powers, low.long()).unbind(-1)
    return value + t * (slope + t * (second + t * third))


def _inside_window(distance: Tensor) -> Tensor:
    """Return 1 up to a distance of WINDOW - 1, and 0 from WINDOW on: a smooth step in between."""
    t = (distance - (WINDOW - 1)).clamp(0, 1)
    return 1 - t * t * (3 - 2 * t)


def _with_previous(field: Tensor) -> Tensor:
    """[rows, blocks, 2 block, ...] each block after the previous one; zeros before the first.

    Zeros have weight 0.
    """
    before = nn.functional.pad(field, (0, 0, 0, 0, 1, 0))[:, :-1]
    return torch.cat([before, field], 2)
