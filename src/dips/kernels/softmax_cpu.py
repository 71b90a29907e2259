"""Launch `softmax_loops`: reading, predicting and the way back on the CPU; needs numba.

Threads share the rows; sums over rows do not depend on how many threads there are. In float32, for
tensors of one run; `vmap` takes runs one after the other.
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

from dips.kernels.dispatch import installed
from dips.kernels.numba_launch import share

SHARES = 16
"""Most places where gradients in all items are summed, each by one thread."""
ROOM = 1 << 26
"""Most numbers in all of them, if they are more than two."""


def fits(table: Tensor) -> bool:
    """Whether there are loops for these vectors of items."""
    return table.device.type == "cpu" and table.dtype == torch.float32 and installed("numba")


class Reading(NamedTuple):
    """Sketches and what reads them. Items' own entries start at 0, so only a square counts."""

    table: Tensor  # [items, dim]
    bias: Tensor  # [items]
    square: Tensor  # [] of the loading of the items' own entries; 0: they have none
    weight: Tensor  # [rows, n] of the sketch's items
    start: Tensor  # [dim]
    pulled: Tensor  # [rows, dim] the weighted sum of what the sketch's items tell
    rate: Tensor  # [rows] a constant
    item: Tensor  # [rows, n]
    pull: float
    steps: int


class _Items(NamedTuple):
    table: Any  # [tiles, width * TILE]
    bias: Any  # [tiles, TILE]
    square: Any


class _Sketches(NamedTuple):
    item: Any
    weight: Any
    start: Any  # [width]
    pulled: Any  # [rows, width]
    rate: Any
    tether: Any
    steps: int


class _Aim(NamedTuple):
    target: Any  # [rows] the items that are predicted
    mass: Any  # [rows] how much their losses count
    struck: Any  # [rows, n] by which weights what was read is no rival of theirs; [0, 0]: it is


class _Found(NamedTuple):
    loss: Any  # [rows]
    pulled: Any  # [rows, width] gradients in the weighted sum of what the items tell
    start: Any  # [rows, width]
    common: Any  # [rows] minus that in the sum of the weights
    square: Any  # [rows]
    user: Any  # [rows, width] vectors after reading
    entry: Any  # [rows, n] in the weights, or [rows, dim + items] in all that is pulled


class Total(torch.autograd.Function):
    """The weighted sum of the losses of predictions; once it is known, so are its gradients."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """A `Reading`, and what is predicted [rows] with which weights [rows]."""
        from dips.kernels import numba_softmax

        *fields, target, mass = given
        reading = Reading(*fields)
        items, sketches = _tiled(reading), _sketches(reading)
        found = _room(reading, reading.item.shape[1])
        size = _share_of(len(target), items.table.size)
        shares = max(1, -(-len(target) // size))
        tables = np.zeros((shares, *items.table.shape), np.float32)
        biases = np.zeros((shares, *items.bias.shape), np.float32)
        aim = _Aim(_array(target), _array(mass), np.zeros((0, 0), np.float32))
        share(numba_softmax.learn, [items, sketches, aim, found, tables, biases, size], shares)
        count, dim = reading.table.shape
        to_table = _summed(tables).view(len(items.table), dim + -dim % 4, -1)
        return (
            _tensor((found.loss * aim.mass).sum()),
            to_table.transpose(1, 2).flatten(0, 1)[:count, :dim],
            _summed(biases).flatten()[:count],
            _tensor(found.square.sum()),
            _tensor(found.entry),
            _tensor(found.start[:, :dim].sum(0)),
            _tensor(found.pulled[:, :dim].copy()),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the gradients."""
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.rest = len(inputs) - len(output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in everything up to what is pulled."""
        return *(gradients[0] * value for value in ctx.saved_tensors), *([None] * ctx.rest)

    @staticmethod
    def vmap(info: Any, axes: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        """Run by run."""
        return _one_by_one(Total, info.batch_size, axes, given)


class Effects(torch.autograd.Function):
    """What weights do to the losses of predictions; it cannot be differentiated."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """Losses [rows], gradients in what is pulled [rows, entries], minus those in the weights.

        Of a `Reading`, of what is predicted [rows], of the loading of the items' own entries, and
        of the weights [rows, n] by which what was read is struck out; either may be None. Then come
        the users' vectors after reading [rows, dim].
        """
        from dips.kernels import numba_softmax

        *fields, target, loading, struck = given
        reading = Reading(*fields)
        dim, own = reading.table.shape[1], 0 if loading is None else len(reading.table)
        found = _room(reading, dim + own)
        nowhere = np.zeros((0, 0), np.float32)
        gone = nowhere if struck is None else _array(struck)
        aim = _Aim(_array(target), np.ones(len(target), np.float32), gone)
        blocks = -(-len(target) // numba_softmax.BLOCK)
        factor = np.float32(0 if loading is None else loading.detach())
        arguments = [_tiled(reading), _sketches(reading), aim, found, factor, dim, nowhere]
        share(numba_softmax.affect, arguments, blocks)
        users = _tensor(found.user[:, :dim].copy())
        return _tensor(found.loss), _tensor(found.entry), _tensor(found.common), users

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep nothing."""
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, axes: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        """Run by run."""
        return _one_by_one(Effects, info.batch_size, axes, given)


def scores(reading: Reading) -> Tensor:
    """[rows, items] logits of all items after reading; of one run, and never differentiated."""
    from dips.kernels import numba_softmax

    found = torch.empty(len(reading.rate), len(reading.table))
    blocks = -(-len(found) // numba_softmax.BLOCK)
    share(numba_softmax.score, [_tiled(reading), _sketches(reading), found.numpy()], blocks)
    return found


def _one_by_one(
    function: Any, runs: int, axes: Sequence[int | None], given: Sequence[Any]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The rule of `vmap` for what takes tensors of one run."""
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


def _tiled(reading: Reading) -> _Items:
    """All items in tiles; what fills the last one is never chosen."""
    from dips.kernels.numba_tiles import NEVER, TILE

    items = len(reading.table)
    tiles = -(-items // TILE)
    table = functional.pad(_by_fours(reading.table), (0, 0, 0, tiles * TILE - items))
    bias = functional.pad(reading.bias, (0, tiles * TILE - items), value=float(NEVER))
    side_by_side = table.view(tiles, TILE, -1).transpose(1, 2).flatten(1)
    square = np.float32(reading.square.detach())
    return _Items(_array(side_by_side), _array(bias.view(tiles, TILE)), square)


def _sketches(reading: Reading) -> _Sketches:
    return _Sketches(
        _array(reading.item),
        _array(reading.weight),
        _array(_by_fours(reading.start)),
        _array(_by_fours(reading.pulled)),
        _array(reading.rate),
        np.float32(2 * reading.pull),
        reading.steps,
    )


def _room(reading: Reading, entries: int) -> _Found:
    """Room for what is found; what is summed up starts at 0."""
    rows, width = len(reading.rate), len(_by_fours(reading.start))
    wide = (rows, width)
    shapes = ((rows,), wide, wide, (rows,), (rows,), wide, (rows, entries))
    return _Found(*(np.zeros(shape, np.float32) for shape in shapes))


def _share_of(rows: int, numbers: int) -> int:
    """Rows whose gradients, so many `numbers`, are summed in one place, by one thread.

    It does not depend on how many threads there are, so sums do not either.
    """
    from dips.kernels.numba_softmax import BLOCK

    places = min(SHARES, max(2, ROOM // numbers))
    return BLOCK * max(4, -(-rows // (places * BLOCK)))


def _by_fours(vectors: Tensor) -> Tensor:
    """Vectors with zeros at the end, up to a multiple of 4."""
    return functional.pad(vectors, (0, -vectors.shape[-1] % 4))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def _tensor(found: Any) -> Tensor:
    return torch.from_numpy(np.asarray(found))


def _summed(shares: Any) -> Tensor:
    """In their order, whoever found them."""
    return _tensor(reduce(np.add, shares))
