"""Scores of a network over sets of candidates, as compiled loops: importing this needs numba.

The same bits as `policy.setnetwork`, which is what to read first.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dips.kernels.numba_fixed_point import add, dot, fixed, loop, multiply, put, quantize
from dips.numerics.exact import SCORE_BITS

SCORE = 2.0**SCORE_BITS
FAR = 2.0**50
"""Scores are cut off here, as selectors do."""
LONG = 16.0
"""Logarithm of the time that counts as one."""
OWN = 7
"""What is known of a candidate beside its item."""


class Room(NamedTuple):
    """Where a loop notes what it knows of the candidates of one refresh."""

    place: np.ndarray  # [candidates] positions
    item: np.ndarray
    met: np.ndarray  # [candidates] repeats
    time: np.ndarray
    rating: np.ndarray
    weight: np.ndarray  # [candidates] how much each counts for the others
    newer: np.ndarray  # [candidates] the weight of those that came later
    known: np.ndarray  # [candidates, OWN] features on the grid
    first: np.ndarray  # [candidates, hidden]
    second: np.ndarray  # [candidates, hidden]
    mean: np.ndarray  # [hidden]
    score: np.ndarray  # [candidates]
    quantized: np.ndarray  # [candidates] scores as they are compared
    stays: np.ndarray  # [candidates]
    vector: np.ndarray  # [dim] of an item, on the grid
    some: np.ndarray  # which units are not 0


@loop
def room_for(width, hidden, dim):
    """For so many candidates, units and entries of an item's vector."""
    return Room(
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width),
        np.ones(width),
        np.empty(width),
        np.empty((width, OWN)),
        np.empty((width, hidden)),
        np.empty((width, hidden)),
        np.empty(hidden),
        np.empty(width),
        np.empty(width),
        np.empty(width, np.bool_),
        np.empty(dim),
        np.empty(max(hidden, OWN, dim), np.int64),
    )


@loop
def _log(logs, whole):
    """The logarithm of 1 + a whole number, on the grid: from the table, if it is there."""
    return logs[whole] if whole < len(logs) else fixed(math.log1p(float(whole)))


@loop
def know(layers, run, seen, room, count):
    """The features of all candidates on the grid, where what is told is; returns their weight."""
    center, spread = layers.scale[run, 0], layers.scale[run, 1]
    newest, total = -(1 << 62), 0.0
    for slot in range(count):
        total += room.weight[slot]
        if room.place[slot] >= 0:
            newest = max(newest, room.time[slot])
    total = max(total, 1.0)
    for slot in range(count):
        known = room.known[slot]
        room.newer[slot] = twins = 0.0
        for other in range(count):
            if room.place[other] > room.place[slot]:
                room.newer[slot] += room.weight[other]
                if room.item[other] == room.item[slot]:
                    twins += room.weight[other]
        if room.place[slot] < 0:
            known[:] = 0.0
            continue
        known[0] = fixed((room.rating[slot] - center) / spread)
        known[1] = fixed(known[1] / spread)
        known[2] = _log(layers.logs, seen - 1 - room.place[slot])
        known[3] = fixed(room.newer[slot] / total)
        known[4] = fixed(math.log1p(float(max(newest - room.time[slot], 0))) / LONG)
        known[5] = _log(layers.logs, room.met[slot])
        known[6] = fixed(twins)
    return total


@loop
def meet(layers, run, vector, room, slot):
    """The share of an item's vector in the first layer and in the score."""
    put(room.first[slot], layers.enter_bias[run])
    for place in range(len(room.vector)):
        room.vector[place] = fixed(vector[place])
    room.score[slot] = dot(room.vector, layers.straight[run])
    multiply(room.first[slot], room.vector, layers.enter[run], room.some)


@loop
def meet_nothing(layers, run, room, slot):
    """The same where there is no item, or one that nobody knows."""
    put(room.first[slot], layers.enter_bias[run])
    room.score[slot] = 0.0


@loop
def judge(layers, run, room, count, total):
    """Scores of the candidates from features and the shares of their items, which are there."""
    hidden = layers.bias.shape[1]
    room.mean[:] = 0.0
    for slot in range(count):
        known, first = room.known[slot], room.first[slot]
        multiply(first, known, layers.own[run], room.some)
        for unit in range(hidden):
            first[unit] = fixed(max(first[unit], 0.0))
        add(room.mean, room.weight[slot], first)
        newer = layers.scale[run, 2] * room.newer[slot]
        room.score[slot] += dot(known, layers.direct[run]) - newer
    meeting = room.second[0]
    put(meeting, layers.bias[run])
    for unit in range(hidden):
        room.mean[unit] = fixed(room.mean[unit] / total)
    multiply(meeting, room.mean, layers.others[run], room.some)
    for slot in range(count - 1, -1, -1):  # the first one is where the meeting stands
        second = room.second[slot]
        put(second, meeting)
        multiply(second, room.first[slot], layers.alone[run], room.some)
        for unit in range(hidden):
            second[unit] = fixed(max(second[unit], 0.0))
        room.score[slot] += dot(second, layers.last[run])


@loop
def choose(room, count, size):
    """Which candidates stay: the highest scores, the newer of equals, as `selection.Greedy`."""
    for slot in range(count):
        quantized = min(max(quantize(room.score[slot], SCORE), -FAR), FAR)
        room.quantized[slot] = (
            np.inf if np.isnan(quantized) else quantized
        )  # above all, as torch sorts
    for slot in range(count):
        above = 0
        for other in range(count):
            better = room.quantized[other] > room.quantized[slot]
            above += better or (other > slot and room.quantized[other] == room.quantized[slot])
        room.stays[slot] = above < size


@loop
def set_scores(asked, layers, scores, first, stride):
    """Score every `stride`-th row of candidates by a network over sets."""
    rows, count = scores.shape
    users = rows // len(layers.bias)
    room = room_for(count, layers.bias.shape[1], asked.embedding.shape[2])
    for row in range(first, rows, stride):
        run = row // users
        for slot in range(count):
            room.place[slot], room.item[slot] = asked.position[row, slot], asked.item[row, slot]
            room.rating[slot], room.time[slot] = asked.rating[row, slot], asked.time[row, slot]
            room.met[slot], room.weight[slot] = asked.repeats[row, slot], asked.weight[row, slot]
            room.known[slot, 1] = asked.told[row, slot]
        total = know(layers, run, asked.seen[row], room, count)
        for slot in range(count):
            if room.place[slot] < 0:
                meet_nothing(layers, run, room, slot)
            else:
                meet(layers, run, asked.embedding[row, slot], room, slot)
        judge(layers, run, room, count, total)
        put(scores[row], room.score)
