"""TrainingRollouts under rules that ask a recommender, as compiled loops: importing this needs numba.

The same as the walk in plain torch under `hardest` and `influence`, with the dot product and
squared error; the gains of `influence` are no sums on the grid, but rounded to it as they are
compared.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from dips.kernels.numba_adaptation import adapt, desk_for, predicted
from dips.kernels.numba_fixed_point import STATE, add, dot, loop, put, quantize
from dips.kernels.numba_rollout import join, remember
from dips.kernels.numba_set_network import SCORE, room_for


@loop
def hardest_walk(way, memory, reader, width, first, stride):
    """Every `stride`-th user keeps what is predicted worst from the sketch."""
    rows, size = memory.position.shape
    users = rows // len(reader.prior)
    room, desk = room_for(width, 1, 0), desk_for(size, reader.prior.shape[1])
    for row in range(first, rows, stride):
        run = row // users
        for turn in range(way.due[row]):
            seen, period = way.refreshes[turn, 0], way.refreshes[turn, 1]
            count = join(way, memory, row, seen, period, room)
            adapt(reader, run, room.item[:size], room.rating, desk)
            for slot in range(count):
                error = predicted(reader, run, room.item[slot], desk.user) - room.rating[slot]
                room.score[slot] = error * error
            remember(way, memory, row, seen, way.refreshes[turn, 2], room, count)


@loop
def influence_walk(way, memory, reader, damping, width, first, stride):
    """Every `stride`-th user adds, from the empty set, what would lower the loss of all most."""
    rows, size = memory.position.shape
    users = rows // len(reader.prior)
    room, desk = room_for(width, 1, 0), desk_for(width, reader.prior.shape[1])
    near, system, slope = np.empty((width, width)), np.empty((width, width)), np.empty(width)
    solved, chosen = np.empty(width), np.empty(width)
    for row in range(first, rows, stride):
        run = row // users
        for turn in range(way.due[row]):
            seen, period = way.refreshes[turn, 0], way.refreshes[turn, 1]
            count = join(way, memory, row, seen, period, room)
            _know(reader, run, room, count, desk, near)
            chosen[:] = 0.0
            room.score[:] = 0.0
            for added in range(size):
                _refit(reader, run, room, count, chosen, reader.dials[run, 2 + added], desk, near)
                for slot in range(count):
                    output = predicted(reader, run, room.item[slot], desk.user)
                    slope[slot] = solved[slot] = 2 * (output - room.rating[slot])
                    for other in range(count):
                        system[slot, other] = 2 * desk.gram[slot, other]
                    system[slot, slot] += damping
                _eliminate(system, solved, count)
                best, most = -1, -np.inf
                for slot in range(count):
                    gain = 0.0
                    for other in range(count):
                        gain += desk.gram[slot, other] * solved[other]
                    gain = quantize(slope[slot] * gain, SCORE)
                    more = gain >= most or gain != gain  # the last among equals; no numbers first
                    if chosen[slot] == 0.0 and more:
                        best, most = slot, gain
                chosen[best] = 1.0
                room.score[best] = size - added
            remember(way, memory, row, seen, way.refreshes[turn, 2], room, count)


@loop
def _know(reader, run, room, count, desk, near):
    """Products of the candidates' vectors, also as reading sees them, and the scores at first."""
    loading, vectors = reader.dials[run, 0], reader.vectors[run]
    put(desk.user, reader.prior[run])
    for left in range(count):
        desk.begun[left] = predicted(reader, run, room.item[left], desk.user)
        for right in range(left + 1):
            product = dot(vectors[room.item[left]], vectors[room.item[right]]) + loading * loading
            desk.gram[left, right] = desk.gram[right, left] = product
            near[left, right] = near[right, left] = quantize(product, STATE)


@loop
def _refit(reader, run, room, count, weight, rate, desk, near):
    """Leave the user as after reading candidates with these weights, by their coefficients."""
    dim, loading, pull = reader.vectors.shape[2], reader.dials[run, 0], reader.dials[run, 1]
    desk.share[:] = 0.0
    put(desk.score, desk.begun)
    for _ in range(reader.steps):
        for slot in range(count):
            fall = 2 * (desk.score[slot] - room.rating[slot]) * weight[slot]
            if reader.pulls:
                fall = fall + pull * desk.share[slot]
            desk.share[slot] = quantize(desk.share[slot] - rate * fall, STATE)
        for slot in range(count):
            desk.score[slot] = desk.begun[slot] + dot(near[slot, :count], desk.share[:count])
    put(desk.user, reader.prior[run])
    for slot in range(count):
        add(desk.user[:dim], desk.share[slot], reader.vectors[run, room.item[slot]])
        desk.user[dim] += loading * desk.share[slot]
    for place in range(dim + 1):
        desk.user[place] = quantize(desk.user[place], STATE)


@loop
def _eliminate(matrix, target, size):
    """Leave the solution in the target: as `influence.eliminate`."""
    for pivot in range(size):
        head = matrix[pivot, pivot]
        for column in range(size):
            matrix[pivot, column] = matrix[pivot, column] / head
        target[pivot] = target[pivot] / head
        for row in range(size):
            factor = matrix[row, pivot]
            if row != pivot:
                for column in range(size):
                    matrix[row, column] = matrix[row, column] - factor * matrix[pivot, column]
                target[row] = target[row] - factor * target[pivot]
