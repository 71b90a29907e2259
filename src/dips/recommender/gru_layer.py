"""A gated recurrent unit that reads weighted entries."""

from __future__ import annotations

import warnings
from typing import final

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, identity

NOISE = 0.3
"""Scale of the random part of the initial new-state weights; the input weights add an identity."""
UPDATE_BIAS = 0.5
"""Added to the initial bias of the update gate, which keeps the old state: more is kept."""


@final
class GRULayer(nn.Module):
    """A GRU that reads weighted entries.

    An entry of weight z interpolates: state + z (new - state), where `new` is the next state of a
    plain GRU. So weight 0 changes nothing, and weight 1 is a plain GRU.

    Initially the state is about a weighted mean of the vectors read, the last ones with the largest
    weights. That helps where items are rare.

    Args:
        dim: Length of the state and of the vectors.
        generator: Source of the initial parameters.
    """

    no_weight_decay = ("input_bias", "state_bias")

    def __init__(self, dim: int, generator: torch.Generator) -> None:
        super().__init__()

        def gates(*shape: int) -> nn.Parameter:
            """Rows for the reset gate, the update gate and the new state."""
            uniform = torch.rand(3 * dim, *shape, generator=generator)
            return nn.Parameter((2 * uniform - 1) * dim**-0.5)

        self.input_weight, self.state_weight = gates(dim), gates(dim)
        self.input_bias, self.state_bias = gates(), gates()
        with torch.no_grad():
            for new in (self.input_weight[2 * dim :], self.state_weight[2 * dim :]):
                new *= NOISE
            self.input_weight[2 * dim :] += torch.eye(dim)
            self.input_bias[dim : 2 * dim] += UPDATE_BIAS

    def read(
        self, state: Tensor, vectors: Tensor, weight: Tensor, rounding: Rounding = identity
    ) -> Tensor:
        """Return the state [rows, dim] after vectors [rows, n, dim] of weight [rows, n]."""
        inputs = vectors @ self.input_weight.T + self.input_bias
        for entry, share in zip(inputs.unbind(1), weight.unbind(1), strict=True):
            state = rounding(state + share[:, None] * (self._step(state, entry) - state))
        return state

    def states(self, start: Tensor, vectors: Tensor) -> Tensor:
        """Return the states [rows, n, dim] after each of n > 0 vectors of weight 1: `torch.gru`."""
        weights: list[Tensor] = [
            self.input_weight, self.state_weight, self.input_bias, self.state_bias,
        ]  # fmt: skip
        with warnings.catch_warnings():  # the weights are not contiguous: CUDA copies them
            warnings.filterwarnings("ignore", message="RNN module weights are not part of")
            first = start[None].contiguous()
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            later, _ = torch.gru(vectors, first, weights, True, 1, 0.0, True, False, True)
        return later

    def _step(self, state: Tensor, entry: Tensor) -> Tensor:
        """Return the next state: old and new state, mixed by the update gate."""
        reset, update, new = entry.chunk(3, -1)
        old = (state @ self.state_weight.T + self.state_bias).chunk(3, -1)
        gate = (update + old[1]).sigmoid()
        fresh = (new + (reset + old[0]).sigmoid() * old[2]).tanh()
        return gate * state + (1 - gate) * fresh
