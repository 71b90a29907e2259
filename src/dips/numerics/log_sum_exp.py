"""The softmax denominator over all items, in chunks of rows: the logits are never stored whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dips.numerics.chunks import split_into_chunks

ROWS = 4
"""Chunks have so many times the rows that fit a core's caches: threads wait less often."""
STORED_ELEMENTS = 1 << 24
"""Most numbers that `StoredLogSumExp` stores."""
FILTERED_LOGIT = -1e30
"""Added to the logit of a filtered item: its exponential is 0, and all numbers stay finite."""


def lower_filtered(logits: Tensor, filtered: Tensor) -> Tensor:
    """Lower the logits of filtered items in place, so that they add nothing to a softmax.

    Args:
        logits: Logits of all items, [rows, items].
        filtered: Items of each row, [rows, n]; -1 pads. An item may occur twice.

    Returns:
        The changed logits.
    """
    change = torch.where(filtered >= 0, FILTERED_LOGIT, 0.0).to(logits.dtype)
    return logits.scatter_add_(1, filtered.clamp_min(0), change)


class LogSumExp(torch.autograd.Function):
    """log sum_i exp(bias_i + table_i . user), for scores that are linear in the user vector.

    The second output is the mean of the item vectors by predicted probability, which is the
    gradient in the user vector. It can be differentiated once, in all inputs. Each row can leave
    out items of its own.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        table: Tensor, bias: Tensor, user: Tensor, *filtered: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return it [rows], and mean item vectors [rows, dim].

        Args:
            table: Item vectors, [items, dim].
            bias: [items].
            user: User vectors, [rows, dim].
            filtered: At most one tensor: items that a row leaves out, [rows, n]; -1 pads.
        """
        norms, means = [], []
        for rows, *gone in split_into_chunks((user, *filtered), max(1, len(table) // ROWS)):
            logits = _logits(table, bias, rows, gone)
            top = logits.amax(1, keepdim=True)
            power = logits.sub_(top).exp_()  # in place: twice as fast on a CPU
            total = power.sum(1, keepdim=True)
            norms.append((total.log() + top)[:, 0])
            means.append((power @ table) / total)
        return torch.cat(norms), torch.cat(means)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save inputs and outputs."""
        table, bias, user, *filtered = inputs
        ctx.save_for_backward(table, bias, user, *output, *filtered)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients in items and users."""
        table, bias, user, norm, mean, *filtered = ctx.saved_tensors
        given = gradients[0]
        if given is None:  # only the mean was used, which is a constant
            return None, None, None, None
        to_table, to_bias = torch.zeros_like(table), torch.zeros_like(bias)
        if any(ctx.needs_input_grad[:2]):
            for rows, norms, weight, *gone in split_into_chunks(
                (user, norm, given, *filtered), max(1, len(table) // ROWS)
            ):
                probability = _logits(table, bias, rows, gone).sub_(norms[:, None]).exp_()
                to_table = torch.addmm(to_table, probability.T, weight[:, None] * rows)
                to_bias = torch.addmv(to_bias, probability.T, weight)
        return to_table, to_bias, given[:, None] * mean, None


class StoredLogSumExp(torch.autograd.Function):
    """`LogSumExp` for a CPU, without `vmap`: stores exp(score - maximum) for the gradient.

    It needs rows x items numbers of memory. In return the gradient computes no score again. The
    memory is used again by the next call: new pages cost as much as the products.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, bias: Tensor, user: Tensor, *filtered: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what `LogSumExp` returns, bit for bit.

        Args:
            ctx: Holds what the gradient reads.
            table: Item vectors, [items, dim].
            bias: [items].
            user: User vectors, [rows, dim].
            filtered: At most one tensor: items that a row leaves out, [rows, n]; -1 pads.
        """
        workspace = _Workspace(len(user) * len(table), table)
        powers = workspace.tensor[: len(user) * len(table)].view(len(user), len(table))
        norms, means, totals = [], [], []
        width = max(1, len(table) // ROWS)
        for rows, power, *gone in split_into_chunks((user, powers, *filtered), width):
            torch.addmm(bias, rows, table.T, out=power)
            for items in gone:
                lower_filtered(power, items)
            top = power.amax(1, keepdim=True)
            total = power.sub_(top).exp_().sum(1, keepdim=True)
            norms.append((total.log() + top)[:, 0])
            means.append((power @ table) / total)
            totals.append(total[:, 0])
        mean = torch.cat(means)
        ctx.save_for_backward(table, bias, user, mean, torch.cat(totals))
        ctx.powers, ctx.workspace = powers, workspace
        ctx.mark_non_differentiable(mean)
        ctx.set_materialize_grads(False)
        return torch.cat(norms), mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients in items and users."""
        table, bias, user, mean, total = ctx.saved_tensors
        given = gradients[0]
        if given is None:  # only the mean was used, which is a constant
            return None, None, None, None
        to_table, to_bias = torch.zeros_like(table), torch.zeros_like(bias)
        if any(ctx.needs_input_grad[:2]):
            width = max(1, len(table) // ROWS)
            for rows, power, weight in split_into_chunks((user, ctx.powers, given / total), width):
                to_table.addmm_(power.T, weight[:, None] * rows)
                to_bias.addmv_(power.T, weight)
        return to_table, to_bias, given[:, None] * mean, None


def _logits(table: Tensor, bias: Tensor, user: Tensor, filtered: Sequence[Tensor]) -> Tensor:
    """Return logits of all items, [rows, items]; those of filtered items are lowered."""
    logits = torch.addmm(bias, user, table.T)
    for items in filtered:
        lower_filtered(logits, items)
    return logits


class _Workspace:
    """Memory that the next workspace takes over when the graph of this one is deleted."""

    free: ClassVar[list[Tensor]] = []

    def __init__(self, elements: int, like: Tensor) -> None:
        with suppress(IndexError):  # pop is atomic: two threads never share memory
            self.tensor = self.free.pop()
            if self.tensor.dtype == like.dtype and len(self.tensor) >= elements:
                return
        self.tensor = like.new_empty(elements)

    def __del__(self) -> None:
        self.free[:] = [self.tensor]


def can_store(table: Tensor, user: Tensor) -> bool:
    """Return whether `StoredLogSumExp` supports these inputs, and its memory is small."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    small = len(user) * len(table) <= STORED_ELEMENTS
    return small and table.device.type == "cpu" and not (wrapped(table) or wrapped(user))
