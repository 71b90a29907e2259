"""Softmax over all items in numba loops: inner loop, prediction, adjoint; importing needs numba.

The results equal `numerics.softmax_descent` up to the rounding of float32. A block of rows goes
through all steps and back while its probabilities stay in a core's cache. Items are in tiles
(`numba_tiles`). With the repeat feature each item has an entry of its own in the user vector; these
entries start at 0, so only the square of `repeat_scale` matters.

`softmax_cpu` states the measured ratio to the reference path.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dips.kernels.numba_fixed_point import copy, loop, reassociating_loop
from dips.kernels.numba_tiles import (
    ONE,
    PADDING,
    TILE,
    ZERO,
    add_product,
    add_product_of_transpose,
    add_weighted_rows,
    exp,
)

BLOCK = 8
"""Rows in a block; a multiple of 4, as is the width of vectors."""


class SoftmaxWorkspace(NamedTuple):
    """Buffers of a block of rows; step `steps` is the prediction."""

    power: np.ndarray  # [steps + 1, tiles, BLOCK * TILE] exp(logit - highest logit)
    repeat: np.ndarray  # [tiles, BLOCK * TILE] repeat entries of the user vectors, unscaled
    repeat_adjoint: np.ndarray  # [tiles, BLOCK * TILE] gradient in them, unscaled
    repeat_adjoint_sum: np.ndarray  # [tiles, BLOCK * TILE] its sum over steps
    spread: np.ndarray  # [BLOCK * TILE] change of the probabilities along the adjoint
    user: np.ndarray  # [steps + 1, BLOCK, width]
    mean: np.ndarray  # [steps + 1, BLOCK, width] mean item vector
    scale: np.ndarray  # [steps + 1, BLOCK] 1 / sum of the powers
    peak: np.ndarray  # [BLOCK * TILE] highest logit at each index of a tile
    top: np.ndarray  # [BLOCK] highest logit
    adjoint: np.ndarray  # [BLOCK, width] gradient in the user vectors
    adjoint_sum: np.ndarray  # [BLOCK, width] its sum over steps
    change: np.ndarray  # [BLOCK, width] what a step adds to the adjoint
    factor: np.ndarray  # [2, width, BLOCK]
    rate: np.ndarray  # [BLOCK] step sizes
    step: np.ndarray  # [BLOCK] factor of the mean item vector in a step
    decay: np.ndarray  # [BLOCK] factor of the previous user vector in a step
    centre: np.ndarray  # [BLOCK] mean change of the logits along the adjoint


@loop
def softmax_workspace(steps, tiles, width):
    """Return buffers for a block."""
    wide, vectors = BLOCK * TILE, np.zeros((2, steps + 1, BLOCK, width), np.float32)
    long, near = np.zeros((3, tiles, wide), np.float32), np.zeros((3, BLOCK, width), np.float32)
    tile, short = np.zeros((2, wide), np.float32), np.zeros((5, BLOCK), np.float32)
    power = np.zeros((steps + 1, tiles, wide), np.float32)
    scale = np.zeros((steps + 1, BLOCK), np.float32)
    factor = np.zeros((2, width, BLOCK), np.float32)
    return SoftmaxWorkspace(  # by index: an unpacked array is not known to be contiguous
        power, long[0], long[1], long[2], tile[0], vectors[0], vectors[1], scale, tile[1], short[0],
        near[0], near[1], near[2], factor, short[1], short[2], short[3], short[4],
    )  # fmt: skip


@reassociating_loop
def _logits(items, buffers, step):
    """Write the logits of all items to `power`, and the highest of each row to `top`."""
    buffers.peak.fill(PADDING)
    for tile in range(len(items.table)):
        logit, repeat, bias = buffers.power[step, tile], buffers.repeat[tile], items.bias[tile]
        for row in range(BLOCK):
            to, entry = logit[row * TILE : (row + 1) * TILE], repeat[row * TILE : (row + 1) * TILE]
            for at in range(TILE):
                to[at] = bias[at] + items.square * entry[at]
        add_product(logit, items.table[tile], buffers.user[step])
        for at in range(BLOCK * TILE):  # index by index: this vectorises
            buffers.peak[at] = logit[at] if logit[at] > buffers.peak[at] else buffers.peak[at]
    for row in range(BLOCK):
        buffers.top[row] = buffers.peak[row * TILE : (row + 1) * TILE].max()


@reassociating_loop
def _powers(items, buffers, step):
    """Replace logits by powers; write the mean item vector."""
    buffers.scale[step].fill(ZERO)
    buffers.mean[step].fill(ZERO)
    for tile in range(len(items.table)):
        power = buffers.power[step, tile]
        for row in range(BLOCK):
            top, total, of = buffers.top[row], ZERO, power[row * TILE : (row + 1) * TILE]
            for at in range(TILE):
                of[at] = exp(of[at] - top)
                total += of[at]
            buffers.scale[step, row] += total
        add_product_of_transpose(buffers.mean[step], power, items.table[tile])
    for row in range(BLOCK):
        buffers.scale[step, row] = ONE / buffers.scale[step, row]
        for place in range(buffers.mean.shape[2]):
            buffers.mean[step, row, place] *= buffers.scale[step, row]


@loop
def _place(item):
    """Return the tile of an item, and its index there."""
    return item // TILE, item % TILE


@reassociating_loop
def _descend(items, problem, buffers, first):
    """Compute all steps (Eq. 7) of a block; rows beyond the last have empty sketches."""
    (rows, entries), width = problem.item.shape, len(problem.start)
    steps = len(buffers.power) - 1
    buffers.repeat.fill(ZERO)
    buffers.rate.fill(ZERO)
    buffers.step.fill(ZERO)
    for row in range(min(BLOCK, rows - first)):
        copy(buffers.user[0, row], problem.start)
        buffers.rate[row] = problem.rate[first + row]
        for slot in range(entries):
            buffers.step[row] -= buffers.rate[row] * problem.weight[first + row, slot]
    for row in range(BLOCK):
        buffers.decay[row] = ONE - problem.penalty_rate * buffers.rate[row]
    for step in range(steps):
        _logits(items, buffers, step)
        _powers(items, buffers, step)
        for row in range(min(BLOCK, rows - first)):
            rate, line = buffers.rate[row], first + row
            for place in range(width):
                lift = (
                    problem.feature_sum[line, place] + problem.penalty_rate * problem.start[place]
                )
                added = buffers.step[row] * buffers.mean[step, row, place] + rate * lift
                left = buffers.decay[row] * buffers.user[step, row, place]
                buffers.user[step + 1, row, place] = left + added
            _repeat_step(buffers, step, row)
            for slot in range(entries):
                tile, at = _place(problem.item[line, slot])
                buffers.repeat[tile, row * TILE + at] += rate * problem.weight[line, slot]


@reassociating_loop
def _repeat_step(buffers, step, row):
    """Update the repeat entries by a step, but for the items of the sketch."""
    decay, scale = buffers.decay[row], buffers.step[row] * buffers.scale[step, row]
    for tile in range(len(buffers.repeat)):
        repeat = buffers.repeat[tile, row * TILE : (row + 1) * TILE]
        power = buffers.power[step, tile, row * TILE : (row + 1) * TILE]
        for at in range(TILE):
            repeat[at] = decay * repeat[at] + scale * power[at]


@loop
def _filter_sketch(problem, buffers, targets, first):
    """Filter items of the sketch from the prediction, by weight; find the highest logit left."""
    last = len(buffers.power) - 1
    for row in range(min(BLOCK, len(targets.filtered) - first)):
        line = first + row
        for slot in range(targets.filtered.shape[1]):
            item, weight = problem.item[line, slot], targets.filtered[line, slot]
            is_filtered = weight > ZERO and item != targets.target[line]
            for before in range(slot):  # a repeated item is filtered once
                same = problem.item[line, before] == item
                is_filtered = is_filtered and not (same and targets.filtered[line, before] > ZERO)
            if is_filtered:
                tile, at = _place(item)
                rest = np.log(ONE - weight) if weight < ONE else PADDING
                buffers.power[last, tile, row * TILE + at] += rest
        _find_highest(buffers, row)


@loop
def _filter_seen(buffers, targets, first):
    """Filter items that were seen, except the target, from the prediction."""
    last, (rows, width) = len(buffers.power) - 1, targets.seen.shape
    for row in range(min(BLOCK, rows - first) if width else 0):
        line = first + row
        for slot in range(width):
            item = targets.seen[line, slot]
            if item >= 0 and item != targets.target[line]:
                tile, at = _place(item)
                buffers.power[last, tile, row * TILE + at] = PADDING
        _find_highest(buffers, row)


@loop
def _find_highest(buffers, row):
    """Find the highest logit that a filter has left in the prediction of a row."""
    last = len(buffers.power) - 1
    buffers.top[row] = PADDING
    for tile in range(len(buffers.repeat)):
        here = buffers.power[last, tile, row * TILE : (row + 1) * TILE].max()
        buffers.top[row] = max(buffers.top[row], here)


@reassociating_loop
def _predict(items, problem, buffers, targets, loss, first):
    """Write the losses of the targets, and their weighted gradient in the last user vectors."""
    last, target, weights = len(buffers.power) - 1, targets.target, targets.weight
    _logits(items, buffers, last)
    _filter_sketch(problem, buffers, targets, first)
    _filter_seen(buffers, targets, first)
    rows = min(BLOCK, len(target) - first)
    for row in range(rows):
        tile, at = _place(target[first + row])
        loss[first + row] = buffers.top[row] - buffers.power[last, tile, row * TILE + at]
    _powers(items, buffers, last)
    buffers.repeat_adjoint_sum.fill(ZERO)
    buffers.adjoint_sum.fill(ZERO)
    for row in range(BLOCK):
        weight = weights[first + row] if row < rows else ZERO
        scale = weight * buffers.scale[last, row]
        for tile in range(len(buffers.repeat_adjoint)):
            adjoint = buffers.repeat_adjoint[tile, row * TILE : (row + 1) * TILE]
            power = buffers.power[last, tile, row * TILE : (row + 1) * TILE]
            for at in range(TILE):
                adjoint[at] = scale * power[at]
        for place in range(buffers.adjoint.shape[1]):
            buffers.adjoint[row, place] = weight * buffers.mean[last, row, place]
        if row < rows:
            loss[first + row] -= np.log(buffers.scale[last, row])
            tile, at = _place(target[first + row])
            buffers.repeat_adjoint[tile, row * TILE + at] -= weight
            for place in range(buffers.adjoint.shape[1]):
                buffers.adjoint[row, place] -= weight * items.table[tile, place * TILE + at]


@reassociating_loop
def _centres(items, found, buffers, step, first):
    """Write the mean change of the logits along the adjoint; add up sums over steps."""
    for row in range(BLOCK):
        within = ZERO
        for tile in range(len(buffers.repeat_adjoint)):
            adjoint = buffers.repeat_adjoint[tile, row * TILE : (row + 1) * TILE]
            sums = buffers.repeat_adjoint_sum[tile, row * TILE : (row + 1) * TILE]
            power = buffers.power[step, tile, row * TILE : (row + 1) * TILE]
            for at in range(TILE):
                within += power[at] * adjoint[at]
                sums[at] += adjoint[at]
        within *= buffers.scale[step, row]
        centre = items.square * within
        for place in range(buffers.adjoint.shape[1]):
            centre += buffers.mean[step, row, place] * buffers.adjoint[row, place]
            buffers.adjoint_sum[row, place] += buffers.adjoint[row, place]
        buffers.centre[row] = centre
        if first + row < len(found.common):
            found.common[first + row] += buffers.rate[row] * centre
            found.square[first + row] += buffers.step[row] * within


@reassociating_loop
def _adjoint_step(items, buffers, step, to_table, to_bias):
    """Compute one step of the adjoint; add gradients in the items unless `to_table` is empty."""
    buffers.change.fill(ZERO)
    for row in range(BLOCK):
        for place in range(buffers.adjoint.shape[1]):
            after = buffers.step[row] * buffers.scale[step, row] * buffers.adjoint[row, place]
            buffers.factor[0, place, row] = buffers.step[row] * buffers.user[step, row, place]
            buffers.factor[1, place, row] = after
    for tile in range(len(items.table)):
        adjoint, spread, power = (
            buffers.repeat_adjoint[tile],
            buffers.spread,
            buffers.power[step, tile],
        )
        for row in range(BLOCK):
            of, to = adjoint[row * TILE : (row + 1) * TILE], spread[row * TILE : (row + 1) * TILE]
            centre = buffers.centre[row]
            for at in range(TILE):
                to[at] = items.square * of[at] - centre
        add_product(spread, items.table[tile], buffers.adjoint)
        for row in range(BLOCK):
            of, to = adjoint[row * TILE : (row + 1) * TILE], spread[row * TILE : (row + 1) * TILE]
            powers = power[row * TILE : (row + 1) * TILE]
            scale, factor, decay = buffers.scale[step, row], buffers.step[row], buffers.decay[row]
            for at in range(TILE):
                to[at] *= scale * powers[at]
                of[at] = decay * of[at] + factor * to[at]
        add_product_of_transpose(buffers.change, spread, items.table[tile])
        if len(to_table):
            add_product(to_table[tile], spread, buffers.factor[0])
            add_product(to_table[tile], power, buffers.factor[1])
            add_weighted_rows(to_bias[tile], spread, buffers.step)
    for row in range(BLOCK):
        for place in range(buffers.adjoint.shape[1]):
            left = buffers.decay[row] * buffers.adjoint[row, place]
            buffers.adjoint[row, place] = left + buffers.step[row] * buffers.change[row, place]


@loop
def _forward_and_backward(items, problem, targets, found, buffers, first, to_table, to_bias):
    """Compute inner loop, prediction and adjoint of a block."""
    rows, width = found.feature_sum.shape
    _descend(items, problem, buffers, first)
    _predict(items, problem, buffers, targets, found.loss, first)
    last, ones = len(buffers.power) - 1, np.ones(BLOCK, np.float32)
    if len(to_table):
        for row in range(BLOCK):
            for place in range(width):
                buffers.factor[0, place, row] = buffers.user[last, row, place]
        for tile in range(len(items.table)):
            add_product(to_table[tile], buffers.repeat_adjoint[tile], buffers.factor[0])
            add_weighted_rows(to_bias[tile], buffers.repeat_adjoint[tile], ones)
    for step in range(last - 1, -1, -1):
        _centres(items, found, buffers, step, first)
        _adjoint_step(items, buffers, step, to_table, to_bias)
    for row in range(min(BLOCK, rows - first)):
        rate = buffers.rate[row]
        for place in range(width):
            total = rate * buffers.adjoint_sum[row, place]
            found.feature_sum[first + row, place] = total
            found.start[first + row, place] = (
                buffers.adjoint[row, place] + problem.penalty_rate * total
            )


@loop
def _write_row(line, tiles, row, factor):
    """Write a row of a block, times a factor, as one vector over all items."""
    for tile in range(len(tiles)):
        to = line[tile * TILE : (tile + 1) * TILE]
        of = tiles[tile, row * TILE : (row + 1) * TILE]
        for at in range(len(to)):
            to[at] = factor * of[at]


@loop
def _entry_gradients(items, problem, found, buffers, first):
    """Write gradients in the entry weights, but for the feature sum, and in the square."""
    rows, entries = problem.item.shape
    for row in range(min(BLOCK, rows - first)):
        line = first + row
        for slot in range(entries):
            tile, at = _place(problem.item[line, slot])
            repeat = buffers.rate[row] * buffers.repeat_adjoint_sum[tile, row * TILE + at]
            found.entry[line, slot] = items.square * repeat - found.common[line]
            found.square[line] += problem.weight[line, slot] * repeat


@loop
def loss_and_gradients(items, problem, targets, found, to_table, to_bias, size, first, stride):
    """Write losses and gradients of every `stride`-th chunk of `size` rows; items' by chunk."""
    rows, width = len(problem.item), len(problem.start)
    buffers = softmax_workspace(problem.steps, len(items.table), width)
    for chunk in range(first, len(to_table), stride):
        for begin in range(chunk * size, min((chunk + 1) * size, rows), BLOCK):
            tables = to_table[chunk], to_bias[chunk]
            _forward_and_backward(
                items, problem, targets, found, buffers, begin, tables[0], tables[1]
            )
            _entry_gradients(items, problem, found, buffers, begin)


@loop
def entry_gradients(items, problem, targets, found, repeat_scale, dim, nothing, first, stride):
    """Write losses and gradients in the feature sum for every `stride`-th block of rows.

    The gradients have `dim` shared entries; repeat entries follow if `found.entry` is wider.
    """
    rows, width = len(problem.item), len(problem.start)
    buffers = softmax_workspace(problem.steps, len(items.table), width)
    for begin in range(first * BLOCK, rows, stride * BLOCK):
        _forward_and_backward(items, problem, targets, found, buffers, begin, nothing, nothing)
        for row in range(min(BLOCK, rows - begin)):
            line = begin + row
            copy(found.entry[line, :dim], found.feature_sum[line])
            copy(found.user[line], buffers.user[problem.steps, row])
            _write_row(
                found.entry[line, dim:],
                buffers.repeat_adjoint_sum,
                row,
                repeat_scale * buffers.rate[row],
            )


@loop
def score(items, problem, scores, first, stride):
    """Write the logits of all items after the inner loop, for every `stride`-th block of rows."""
    rows, width = len(problem.item), len(problem.start)
    buffers = softmax_workspace(problem.steps, len(items.table), width)
    for begin in range(first * BLOCK, rows, stride * BLOCK):
        _descend(items, problem, buffers, begin)
        _logits(items, buffers, problem.steps)
        for row in range(min(BLOCK, rows - begin)):
            _write_row(scores[begin + row], buffers.power[problem.steps], row, ONE)
