"""A gated recurrent unit as recommenders use it: weighted entries, and a start that is a mean."""

from __future__ import annotations

import warnings
from typing import final

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, keep

QUIET, LEAN = 0.3, 0.5
"""At the start: how loud the noise beside that mean is, and how much the update gate keeps."""


@final
class GRULayer(nn.Module):
    """Reads vectors one after the other; an entry of weight z moves the state z of the way.

    At the start the state is about a mean of the vectors that were read, the last ones counting
    most: where items are rare, what goes together is found sooner.
    """

    undecayed = ("item_shift", "state_shift")

    def __init__(self, dim: int, generator: torch.Generator) -> None:
        super().__init__()

        def gates(*shape: int) -> nn.Parameter:
            """For reset, update and new state, one below the other."""
            spread = torch.rand(3 * dim, *shape, generator=generator)
            return nn.Parameter((2 * spread - 1) * dim**-0.5)

        self.from_item, self.from_state = gates(dim), gates(dim)
        self.item_shift, self.state_shift = gates(), gates()
        with torch.no_grad():
            for new in (self.from_item[2 * dim :], self.from_state[2 * dim :]):
                new *= QUIET
            self.from_item[2 * dim :] += torch.eye(dim)
            self.item_shift[dim : 2 * dim] += LEAN

    def read(
        self, state: Tensor, vectors: Tensor, weight: Tensor, rounding: Rounding = keep
    ) -> Tensor:
        """[rows, dim] the state after the vectors [rows, n, dim] of weight [rows, n]."""
        arriving = vectors @ self.from_item.T + self.item_shift
        for arrival, share in zip(arriving.unbind(1), weight.unbind(1), strict=True):
            state = rounding(state + share[:, None] * (self._step(state, arrival) - state))
        return state

    def states(self, start: Tensor, vectors: Tensor) -> Tensor:
        """[rows, n, dim] the states after each of n > 0 vectors, by torch's own recurrence."""
        weights: list[Tensor] = [self.from_item, self.from_state, self.item_shift, self.state_shift]
        with warnings.catch_warnings():  # the weights lie apart: CUDA copies them together
            warnings.filterwarnings("ignore", message="RNN module weights are not part of")
            first = start[None].contiguous()
            later, _ = torch.gru(vectors, first, weights, True, 1, 0.0, True, False, True)
        return later

    def _step(self, state: Tensor, arrival: Tensor) -> Tensor:
        """The next state: old and new, mixed by the update gate."""
        reset, update, new = arrival.chunk(3, -1)
        was = (state @ self.from_state.T + self.state_shift).chunk(3, -1)
        gate = (update + was[1]).sigmoid()
        fresh = (new + (reset + was[0]).sigmoid() * was[2]).tanh()
        return gate * state + (1 - gate) * fresh
