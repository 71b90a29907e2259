"""The softmax denominator over all items, in chunks of rows: the logits are never stored whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dips.numerics.chunks import split_into_chunks

ROWS = 4
"""Chunks have so many times the rows that fit a core's caches: threads wait less often."""


class LogSumExp(torch.autograd.Function):
    """log sum_i exp(bias_i + table_i . user), for scores that are linear in the user vector.

    The second output is the mean of the item vectors by predicted probability, which is the
    gradient in the user vector. It can be differentiated once, in all inputs.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, bias: Tensor, user: Tensor) -> tuple[Tensor, Tensor]:
        """Return it [rows], and mean item vectors [rows, dim].

        Args:
            table: Item vectors, [items, dim].
            bias: [items].
            user: User vectors, [rows, dim].
        """
        norms, means = [], []
        for (rows,) in split_into_chunks((user,), max(1, len(table) // ROWS)):
            logits = torch.addmm(bias, rows, table.T)
            top = logits.amax(1, keepdim=True)
            power = logits.sub_(top).exp_()  # in place: twice as fast on a CPU
            total = power.sum(1, keepdim=True)
            norms.append((total.log() + top)[:, 0])
            means.append((power @ table) / total)
        return torch.cat(norms), torch.cat(means)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save inputs and outputs."""
        ctx.save_for_backward(*inputs, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients in items and users."""
        table, bias, user, norm, mean = ctx.saved_tensors
        given = gradients[0]
        if given is None:  # only the mean was used, which is a constant
            return None, None, None
        to_table, to_bias = torch.zeros_like(table), torch.zeros_like(bias)
        if any(ctx.needs_input_grad[:2]):
            for rows, norms, weight in split_into_chunks(
                (user, norm, given), max(1, len(table) // ROWS)
            ):
                probability = torch.addmm(bias, rows, table.T).sub_(norms[:, None]).exp_()
                to_table = torch.addmm(to_table, probability.T, weight[:, None] * rows)
                to_bias = torch.addmv(to_bias, probability.T, weight)
        return to_table, to_bias, given[:, None] * mean
