"""The inner loop for the softmax over all items, and its way back, as compiled loops: needs numba.

The same as `softmax_descent` to the rounding of float32. A block of rows goes through all steps and
back while its chances stay in a core's caches. Items lie in tiles (`tile_loops`).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dips.kernels.numba_fixed_point import loop, put, sum_loop
from dips.kernels.numba_tiles import NEVER, NONE, ONE, TILE, add_rows, collect, combine, exp

BLOCK = 8
"""Rows that go through all steps together; a multiple of 4, as is the width of vectors."""


class Desk(NamedTuple):
    """What a block of rows knows on its way; `step` counts from 0 to the prediction itself."""

    chance: np.ndarray  # [steps + 1, tiles, BLOCK * TILE] exp(logit - highest)
    own: np.ndarray  # [tiles, BLOCK * TILE] entries of the items' own, before their loading
    back: np.ndarray  # [tiles, BLOCK * TILE] the gradient in what they add to the logits
    backs: np.ndarray  # [tiles, BLOCK * TILE] its sum over steps
    spread: np.ndarray  # [BLOCK * TILE] how chances change along the gradient
    user: np.ndarray  # [steps + 1, BLOCK, width]
    mean: np.ndarray  # [steps + 1, BLOCK, width] of the items' vectors
    share: np.ndarray  # [steps + 1, BLOCK] 1 over the sum of the chances
    peak: np.ndarray  # [BLOCK * TILE] the highest logit at each place of a tile
    top: np.ndarray  # [BLOCK] the highest logit
    along: np.ndarray  # [BLOCK, width] the gradient in the user's vector
    alongs: np.ndarray  # [BLOCK, width] its sum over steps
    turned: np.ndarray  # [BLOCK, width] what a step adds to it
    factor: np.ndarray  # [2, width, BLOCK]
    rate: np.ndarray  # [BLOCK]
    step: np.ndarray  # [BLOCK] what a step adds of the items' mean
    stay: np.ndarray  # [BLOCK] what a step leaves of the vector before
    centre: np.ndarray  # [BLOCK]


@loop
def desk_for(steps, tiles, width):
    """Room for a block."""
    wide, ways = BLOCK * TILE, np.zeros((2, steps + 1, BLOCK, width), np.float32)
    long, near = np.zeros((3, tiles, wide), np.float32), np.zeros((3, BLOCK, width), np.float32)
    tile, short = np.zeros((2, wide), np.float32), np.zeros((5, BLOCK), np.float32)
    chance = np.zeros((steps + 1, tiles, wide), np.float32)
    share = np.zeros((steps + 1, BLOCK), np.float32)
    factor = np.zeros((2, width, BLOCK), np.float32)
    return Desk(  # by index: unpacked, an array is no longer known to have no gaps
        chance, long[0], long[1], long[2], tile[0], ways[0], ways[1], share, tile[1], short[0],
        near[0], near[1], near[2], factor, short[1], short[2], short[3], short[4],
    )  # fmt: skip


@sum_loop
def _logits(items, desk, step):
    """Of all items, in the place of the chances; and the highest of each row."""
    desk.peak.fill(NEVER)
    for tile in range(len(items.table)):
        logit, own, bias = desk.chance[step, tile], desk.own[tile], items.bias[tile]
        for row in range(BLOCK):
            to, entry = logit[row * TILE : (row + 1) * TILE], own[row * TILE : (row + 1) * TILE]
            for at in range(TILE):
                to[at] = bias[at] + items.square * entry[at]
        combine(logit, items.table[tile], desk.user[step])
        for at in range(BLOCK * TILE):  # place by place: a vector has no highest entry at once
            desk.peak[at] = logit[at] if logit[at] > desk.peak[at] else desk.peak[at]
    for row in range(BLOCK):
        desk.top[row] = desk.peak[row * TILE : (row + 1) * TILE].max()


@sum_loop
def _chances(items, desk, step):
    """From logits to chances, and what the items are on average."""
    desk.share[step].fill(NONE)
    desk.mean[step].fill(NONE)
    for tile in range(len(items.table)):
        chance = desk.chance[step, tile]
        for row in range(BLOCK):
            top, total, of = desk.top[row], NONE, chance[row * TILE : (row + 1) * TILE]
            for at in range(TILE):
                of[at] = exp(of[at] - top)
                total += of[at]
            desk.share[step, row] += total
        collect(desk.mean[step], chance, items.table[tile])
    for row in range(BLOCK):
        desk.share[step, row] = ONE / desk.share[step, row]
        for place in range(desk.mean.shape[2]):
            desk.mean[step, row, place] *= desk.share[step, row]


@loop
def _place(item):
    """Where an item lies: its tile, and where in it."""
    return item // TILE, item % TILE


@sum_loop
def _descend(items, reading, desk, first):
    """All steps of these rows; what is missing in the last block reads nothing."""
    (rows, entries), width = reading.item.shape, len(reading.start)
    steps = len(desk.chance) - 1
    desk.own.fill(NONE)
    desk.rate.fill(NONE)
    desk.step.fill(NONE)
    for row in range(min(BLOCK, rows - first)):
        put(desk.user[0, row], reading.start)
        desk.rate[row] = reading.rate[first + row]
        for slot in range(entries):
            desk.step[row] -= desk.rate[row] * reading.weight[first + row, slot]
    for row in range(BLOCK):
        desk.stay[row] = ONE - reading.tether * desk.rate[row]
    for step in range(steps):
        _logits(items, desk, step)
        _chances(items, desk, step)
        for row in range(min(BLOCK, rows - first)):
            rate, line = desk.rate[row], first + row
            for place in range(width):
                lift = reading.pulled[line, place] + reading.tether * reading.start[place]
                moved = desk.step[row] * desk.mean[step, row, place] + rate * lift
                stays = desk.stay[row] * desk.user[step, row, place]
                desk.user[step + 1, row, place] = stays + moved
            _own_step(desk, step, row)
            for slot in range(entries):
                tile, at = _place(reading.item[line, slot])
                desk.own[tile, row * TILE + at] += rate * reading.weight[line, slot]


@sum_loop
def _own_step(desk, step, row):
    """What a step does to the items' own entries, but for those of the sketch."""
    stay, share = desk.stay[row], desk.step[row] * desk.share[step, row]
    for tile in range(len(desk.own)):
        own = desk.own[tile, row * TILE : (row + 1) * TILE]
        chance = desk.chance[step, tile, row * TILE : (row + 1) * TILE]
        for at in range(TILE):
            own[at] = stay * own[at] + share * chance[at]


@loop
def _strike(reading, desk, aim, first):
    """What was read is no rival of what is predicted, by its weight; and the highest logit left."""
    last = len(desk.chance) - 1
    for row in range(min(BLOCK, len(aim.struck) - first)):
        line = first + row
        for slot in range(aim.struck.shape[1]):
            item, weight = reading.item[line, slot], aim.struck[line, slot]
            baseline = weight > NONE and item != aim.target[line]
            for before in range(slot):  # whoever came twice is struck out once
                met = reading.item[line, before] == item and aim.struck[line, before] > NONE
                baseline = baseline and not met
            if baseline:
                tile, at = _place(item)
                rest = np.log(ONE - weight) if weight < ONE else NEVER
                desk.chance[last, tile, row * TILE + at] += rest
        desk.top[row] = NEVER
        for tile in range(len(desk.own)):
            here = desk.chance[last, tile, row * TILE : (row + 1) * TILE].max()
            desk.top[row] = max(desk.top[row], here)


@sum_loop
def _aim(items, reading, desk, aim, loss, first):
    """Losses of what is predicted, and gradients of their weighted sum in the last vectors."""
    last, target, mass = len(desk.chance) - 1, aim.target, aim.mass
    _logits(items, desk, last)
    _strike(reading, desk, aim, first)
    rows = min(BLOCK, len(target) - first)
    for row in range(rows):
        tile, at = _place(target[first + row])
        loss[first + row] = desk.top[row] - desk.chance[last, tile, row * TILE + at]
    _chances(items, desk, last)
    desk.backs.fill(NONE)
    desk.alongs.fill(NONE)
    for row in range(BLOCK):
        weight = mass[first + row] if row < rows else NONE
        share = weight * desk.share[last, row]
        for tile in range(len(desk.back)):
            back = desk.back[tile, row * TILE : (row + 1) * TILE]
            chance = desk.chance[last, tile, row * TILE : (row + 1) * TILE]
            for at in range(TILE):
                back[at] = share * chance[at]
        for place in range(desk.along.shape[1]):
            desk.along[row, place] = weight * desk.mean[last, row, place]
        if row < rows:
            loss[first + row] -= np.log(desk.share[last, row])
            tile, at = _place(target[first + row])
            desk.back[tile, row * TILE + at] -= weight
            for place in range(desk.along.shape[1]):
                desk.along[row, place] -= weight * items.table[tile, place * TILE + at]


@sum_loop
def _centres(items, found, desk, step, first):
    """How the logits change along the gradients, on average, and sums over steps of all that."""
    for row in range(BLOCK):
        within = NONE
        for tile in range(len(desk.back)):
            back = desk.back[tile, row * TILE : (row + 1) * TILE]
            backs = desk.backs[tile, row * TILE : (row + 1) * TILE]
            chance = desk.chance[step, tile, row * TILE : (row + 1) * TILE]
            for at in range(TILE):
                within += chance[at] * back[at]
                backs[at] += back[at]
        within *= desk.share[step, row]
        centre = items.square * within
        for place in range(desk.along.shape[1]):
            centre += desk.mean[step, row, place] * desk.along[row, place]
            desk.alongs[row, place] += desk.along[row, place]
        desk.centre[row] = centre
        if first + row < len(found.common):
            found.common[first + row] += desk.rate[row] * centre
            found.square[first + row] += desk.step[row] * within


@sum_loop
def _back(items, desk, step, to_table, to_bias):
    """One step back; with gradients in the items, unless there is no room for them."""
    desk.turned.fill(NONE)
    for row in range(BLOCK):
        for place in range(desk.along.shape[1]):
            after = desk.step[row] * desk.share[step, row] * desk.along[row, place]
            desk.factor[0, place, row] = desk.step[row] * desk.user[step, row, place]
            desk.factor[1, place, row] = after
    for tile in range(len(items.table)):
        back, spread, chance = desk.back[tile], desk.spread, desk.chance[step, tile]
        for row in range(BLOCK):
            of, to = back[row * TILE : (row + 1) * TILE], spread[row * TILE : (row + 1) * TILE]
            centre = desk.centre[row]
            for at in range(TILE):
                to[at] = items.square * of[at] - centre
        combine(spread, items.table[tile], desk.along)
        for row in range(BLOCK):
            of, to = back[row * TILE : (row + 1) * TILE], spread[row * TILE : (row + 1) * TILE]
            likely = chance[row * TILE : (row + 1) * TILE]
            share, moves, stay = desk.share[step, row], desk.step[row], desk.stay[row]
            for at in range(TILE):
                to[at] *= share * likely[at]
                of[at] = stay * of[at] + moves * to[at]
        collect(desk.turned, spread, items.table[tile])
        if len(to_table):
            combine(to_table[tile], spread, desk.factor[0])
            combine(to_table[tile], chance, desk.factor[1])
            add_rows(to_bias[tile], spread, desk.step)
    for row in range(BLOCK):
        for place in range(desk.along.shape[1]):
            stays = desk.stay[row] * desk.along[row, place]
            desk.along[row, place] = stays + desk.step[row] * desk.turned[row, place]


@loop
def _there_and_back(items, reading, aim, found, desk, first, to_table, to_bias):
    """A block of rows: read, predict, and go the way back."""
    rows, width = found.pulled.shape
    _descend(items, reading, desk, first)
    _aim(items, reading, desk, aim, found.loss, first)
    last, once = len(desk.chance) - 1, np.ones(BLOCK, np.float32)
    if len(to_table):
        for row in range(BLOCK):
            for place in range(width):
                desk.factor[0, place, row] = desk.user[last, row, place]
        for tile in range(len(items.table)):
            combine(to_table[tile], desk.back[tile], desk.factor[0])
            add_rows(to_bias[tile], desk.back[tile], once)
    for step in range(last - 1, -1, -1):
        _centres(items, found, desk, step, first)
        _back(items, desk, step, to_table, to_bias)
    for row in range(min(BLOCK, rows - first)):
        rate = desk.rate[row]
        for place in range(width):
            total = rate * desk.alongs[row, place]
            found.pulled[first + row, place] = total
            found.start[first + row, place] = desk.along[row, place] + reading.tether * total


@loop
def _spell_out(line, tiles, row, factor):
    """A row of a block as one line of all items, times a factor."""
    for tile in range(len(tiles)):
        to = line[tile * TILE : (tile + 1) * TILE]
        of = tiles[tile, row * TILE : (row + 1) * TILE]
        for at in range(len(to)):
            to[at] = factor * of[at]


@loop
def _weigh(items, reading, found, desk, first):
    """Gradients in the weights of the entries, but for what they pull; and in the square."""
    rows, entries = reading.item.shape
    for row in range(min(BLOCK, rows - first)):
        line = first + row
        for slot in range(entries):
            tile, at = _place(reading.item[line, slot])
            own = desk.rate[row] * desk.backs[tile, row * TILE + at]
            found.entry[line, slot] = items.square * own - found.common[line]
            found.square[line] += reading.weight[line, slot] * own


@loop
def learn(items, reading, aim, found, to_table, to_bias, size, first, stride):
    """Losses and gradients of every `stride`-th share of `size` rows; items' by share."""
    rows, desk = len(reading.item), desk_for(reading.steps, len(items.table), len(reading.start))
    for share in range(first, len(to_table), stride):
        for begin in range(share * size, min((share + 1) * size, rows), BLOCK):
            tables = to_table[share], to_bias[share]
            _there_and_back(items, reading, aim, found, desk, begin, tables[0], tables[1])
            _weigh(items, reading, found, desk, begin)


@loop
def affect(items, reading, aim, found, loading, dim, nowhere, first, stride):
    """The same for every `stride`-th block of rows; gradients in what is pulled, nothing else.

    After `dim` entries that all items share come their own, if there is room.
    """
    rows, desk = len(reading.item), desk_for(reading.steps, len(items.table), len(reading.start))
    for begin in range(first * BLOCK, rows, stride * BLOCK):
        _there_and_back(items, reading, aim, found, desk, begin, nowhere, nowhere)
        for row in range(min(BLOCK, rows - begin)):
            line = begin + row
            put(found.entry[line, :dim], found.pulled[line])
            put(found.user[line], desk.user[reading.steps, row])
            _spell_out(found.entry[line, dim:], desk.backs, row, loading * desk.rate[row])


@loop
def score(items, reading, scores, first, stride):
    """Logits of all items after reading, for every `stride`-th block of rows."""
    rows, desk = len(reading.item), desk_for(reading.steps, len(items.table), len(reading.start))
    for begin in range(first * BLOCK, rows, stride * BLOCK):
        _descend(items, reading, desk, begin)
        _logits(items, desk, reading.steps)
        for row in range(min(BLOCK, rows - begin)):
            _spell_out(scores[begin + row], desk.chance[reading.steps], row, ONE)
