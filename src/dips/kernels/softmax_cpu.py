"""Softmax over all items on the CPU: loss, gradients and scores from numba loops (`numba_softmax`).

Only `dispatch` imports this file; it says when the loops are supported. Rows are divided between
threads; sums over rows do not depend on the number of threads. Tensors are float32 and belong to
one run; under `vmap` the runs are computed one after the other.

Time of the reference path (`numerics.softmax_descent`) / time of numba, both on one core, for the
loss of 512 predictions over 2,000 items and all gradients: 1.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dips.kernels.numba_launch import share

MOST_CHUNKS = 16
"""Most copies of the gradients in all items; each is summed by one thread."""
MOST_NUMBERS = 1 << 26
"""Most numbers in all copies, if there are more than two."""


class SoftmaxProblem(NamedTuple):
    """Sketches, and the inner loop that adapts users to them (Eqs. 7-8).

    Repeat entries of the user vectors start at 0, so only the square of their scale matters.
    """

    table: Tensor  # [items, dim] item vectors
    bias: Tensor  # [items]
    square: Tensor  # [] square of `repeat_scale`; 0 without the repeat feature
    weight: Tensor  # [rows, n] weights of the sketch entries
    start: Tensor  # [dim] initial user vector
    feature_sum: Tensor  # [rows, dim] weighted sum of the entries' input vectors
    rate: Tensor  # [rows] step size; a constant
    item: Tensor  # [rows, n] items of the sketch
    penalty: float  # weight of the regulariser of Eq. 2
    steps: int


class _Items(NamedTuple):
    table: Any  # [tiles, width * TILE]
    bias: Any  # [tiles, TILE]
    square: Any


class _Sketches(NamedTuple):
    item: Any
    weight: Any
    start: Any  # [width]
    feature_sum: Any  # [rows, width]
    rate: Any
    penalty_rate: Any
    steps: int


class _Targets(NamedTuple):
    target: Any  # [rows] predicted items
    weight: Any  # [rows] weights of their losses
    filtered: Any  # [rows, n] weights by which sketch items are filtered; [0, 0]: not filtered
    seen: Any  # [rows, m] further items that are filtered; -1 pads; m = 0: none


class _Found(NamedTuple):
    loss: Any  # [rows]
    feature_sum: Any  # [rows, width] gradients in the feature sum
    start: Any  # [rows, width]
    common: Any  # [rows] minus the gradient in the sum of the weights
    square: Any  # [rows]
    user: Any  # [rows, width] user vectors after the inner loop
    entry: Any  # [rows, n] gradients in the weights, or [rows, dim + items] in the feature sum


class SoftmaxLoss(torch.autograd.Function):
    """The weighted sum of prediction losses; its gradients are computed with it."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """Return the loss [], then its gradients.

        Args:
            given: The fields of a `SoftmaxProblem`, the predicted items [rows], their weights
                [rows], and items that are filtered from the prediction [rows, m] (-1 pads).
        """
        from dips.kernels import numba_softmax

        *fields, target, weight, seen = given
        problem = SoftmaxProblem(*fields)
        items, sketches = _items(problem), _sketches(problem)
        found = _found(problem, problem.item.shape[1])
        size = _chunk_size(len(target), items.table.size)
        chunks = max(1, -(-len(target) // size))
        tables = np.zeros((chunks, *items.table.shape), np.float32)
        biases = np.zeros((chunks, *items.bias.shape), np.float32)
        nothing = np.zeros((0, 0), np.float32)
        targets = _Targets(_array(target), _array(weight), nothing, _array(seen))
        arguments = [items, sketches, targets, found, tables, biases, size]
        share(numba_softmax.loss_and_gradients, arguments, chunks)
        count, dim = problem.table.shape
        to_table = _sum(tables).view(len(items.table), dim + -dim % 4, -1)
        return (
            _tensor((found.loss * targets.weight).sum()),
            to_table.transpose(1, 2).flatten(0, 1)[:count, :dim],
            _sum(biases).flatten()[:count],
            _tensor(found.square.sum()),
            _tensor(found.entry),
            _tensor(found.start[:, :dim].sum(0)),
            _tensor(found.feature_sum[:, :dim].copy()),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the gradients."""
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.rest = len(inputs) - len(output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients in all inputs up to the feature sum."""
        return *(gradients[0] * value for value in ctx.saved_tensors), *([None] * ctx.rest)

    @staticmethod
    def vmap(info: Any, axes: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        """Compute one run after the other."""
        return _each_run(SoftmaxLoss, info.batch_size, axes, given)


class SoftmaxEntryGradients(torch.autograd.Function):
    """Losses of predictions and their gradients in the sketch; not differentiable."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """Return losses, gradients and user vectors.

        Args:
            given: The fields of a `SoftmaxProblem`, the predicted items [rows], `repeat_scale` []
                or None, weights [rows, n] by which sketch items are filtered, or None, and
                further items that are filtered from the prediction [rows, m] (-1 pads).

        Returns:
            Losses [rows]; gradients in the feature sum [rows, dim (+ items)]; minus the gradient
            in the sum of the weights [rows]; user vectors after the inner loop [rows, dim].
        """
        from dips.kernels import numba_softmax

        *fields, target, repeat_scale, filtered, seen = given
        problem = SoftmaxProblem(*fields)
        dim = problem.table.shape[1]
        found = _found(problem, dim + (0 if repeat_scale is None else len(problem.table)))
        nothing = np.zeros((0, 0), np.float32)
        weights = np.ones(len(target), np.float32)
        by_weight = nothing if filtered is None else _array(filtered)
        targets = _Targets(_array(target), weights, by_weight, _array(seen))
        blocks = -(-len(target) // numba_softmax.BLOCK)
        scale = np.float32(0 if repeat_scale is None else repeat_scale.detach())
        arguments = [_items(problem), _sketches(problem), targets, found, scale, dim, nothing]
        share(numba_softmax.entry_gradients, arguments, blocks)
        users = _tensor(found.user[:, :dim].copy())
        return _tensor(found.loss), _tensor(found.entry), _tensor(found.common), users

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save nothing."""
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, axes: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        """Compute one run after the other."""
        return _each_run(SoftmaxEntryGradients, info.batch_size, axes, given)


def softmax_scores(problem: SoftmaxProblem) -> Tensor:
    """Return the logits of all items after the inner loop, [rows, items]; not differentiable."""
    from dips.kernels import numba_softmax

    found = torch.empty(len(problem.rate), len(problem.table))
    blocks = -(-len(found) // numba_softmax.BLOCK)
    share(numba_softmax.score, [_items(problem), _sketches(problem), found.numpy()], blocks)
    return found


def _each_run(
    function: Any, runs: int, axes: Sequence[int | None], given: Sequence[Any]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return the stacked results of a function of one run: a rule for `vmap`."""
    found = [
        function.apply(
            *(
                value if axis is None else value.select(axis, run)
                for value, axis in zip(given, axes, strict=True)
            )
        )
        for run in range(runs)
    ]
    stacked = tuple(map(torch.stack, zip(*found, strict=True)))
    return stacked, (0,) * len(stacked)


def _items(problem: SoftmaxProblem) -> _Items:
    """Return all items in tiles; the padding of the last tile has probability 0."""
    from dips.kernels.numba_tiles import PADDING, TILE

    items = len(problem.table)
    tiles = -(-items // TILE)
    table = functional.pad(_by_fours(problem.table), (0, 0, 0, tiles * TILE - items))
    bias = functional.pad(problem.bias, (0, tiles * TILE - items), value=float(PADDING))
    tiled = table.view(tiles, TILE, -1).transpose(1, 2).flatten(1)
    square = np.float32(problem.square.detach())
    return _Items(_array(tiled), _array(bias.view(tiles, TILE)), square)


def _sketches(problem: SoftmaxProblem) -> _Sketches:
    return _Sketches(
        _array(problem.item),
        _array(problem.weight),
        _array(_by_fours(problem.start)),
        _array(_by_fours(problem.feature_sum)),
        _array(problem.rate),
        np.float32(2 * problem.penalty),
        problem.steps,
    )


def _found(problem: SoftmaxProblem, entries: int) -> _Found:
    """Return arrays of zeros for the results."""
    rows, width = len(problem.rate), len(_by_fours(problem.start))
    wide = (rows, width)
    shapes = ((rows,), wide, wide, (rows,), (rows,), wide, (rows, entries))
    return _Found(*(np.zeros(shape, np.float32) for shape in shapes))


def _chunk_size(rows: int, numbers: int) -> int:
    """Return the rows whose gradients in all items, `numbers` of them, share one copy.

    It does not depend on the number of threads, so the sums do not either.
    """
    from dips.kernels.numba_softmax import BLOCK

    chunks = min(MOST_CHUNKS, max(2, MOST_NUMBERS // numbers))
    return BLOCK * max(4, -(-rows // (chunks * BLOCK)))


def _by_fours(vectors: Tensor) -> Tensor:
    """Return vectors padded with zeros to a multiple of 4 numbers."""
    return functional.pad(vectors, (0, -vectors.shape[-1] % 4))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def _tensor(found: Any) -> Tensor:
    return torch.from_numpy(np.asarray(found))


def _sum(chunks: Any) -> Tensor:
    """Return the sum of all copies, in their order."""
    return _tensor(reduce(np.add, chunks))
