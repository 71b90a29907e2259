"""Sketches that are kept up to date from arrivals, as one compiled loop: this needs numba.

Either a network over sets decides, to which the dot product may tell residuals (squared error) or
predicted_scores (softmax); or age and lots do. The same bits as `sketch.update` leaves arrival by arrival.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dips.kernels.numba_adaptation import adapt, desk_for, expected, listen, predicted
from dips.kernels.numba_fixed_point import loop, put, quantize
from dips.kernels.numba_set_network import choose, judge, know, meet, meet_nothing, room_for
from dips.numerics.exact import SCORE_BITS
from dips.numerics.hashing import FIRST, GOLDEN, SECOND, UNIT

SCORE = 2.0**SCORE_BITS


class Shares(NamedTuple):
    """What the items, or the first of them, add to a network whoever meets them."""

    first: np.ndarray  # [items, hidden] in the first layer, its bias included
    score: np.ndarray  # [items]


@loop
def shares_of(net, vectors):
    """From the vectors of items."""
    room = room_for(1, net.bias.shape[1], net.enter.shape[1])
    shares = Shares(np.empty((len(vectors), net.bias.shape[1])), np.empty(len(vectors)))
    for item in range(len(vectors)):
        meet(net, 0, vectors[item], room, 0)
        put(shares.first[item], room.first[0])
        shares.score[item] = room.score[0]
    return shares


@loop
def keep(kept, arrivals, number, net, vectors, reader, listener, shares):
    """Take arrivals in their order into the sketches of their users, of one run.

    `number` tells the run's number of each item code, -1 of those that it does not know: these have
    no vector and no residual, are expected no more than the others, and are not read. Who has no
    vectors does not tell.
    """
    size = kept.position.shape[1]
    reads, listens = reader.vectors.size > 0, listener.vectors.size > 0
    room = room_for(size + 1, net.bias.shape[1], net.enter.shape[1])
    desk = desk_for(size, reader.prior.shape[1] if reads else listener.vectors.shape[2])
    names = room.place.copy()
    for event in range(len(arrivals.row)):
        row = arrivals.row[event]
        kept.seen[row] += 1
        count = _join(kept, arrivals, event, row, room)
        if count <= size:
            _write(kept, arrivals, event, row, count - 1, room, count - 1)
            continue
        for slot in range(count):
            names[slot] = number[room.item[slot]]
        if reads:
            adapt(reader, 0, names[:size], room.rating, desk)
        elif listens:
            listen(listener, 0, names[:size], room.place, kept.seen[row], desk)
        least = np.inf
        for slot in range(count):
            room.known[slot, 1] = 0.0
            if names[slot] < 0:
                meet_nothing(net, 0, room, slot)
                continue
            if reads:
                output = predicted(reader, 0, names[slot], desk.user)
                room.known[slot, 1] = (output - room.rating[slot]) * -2.0
            elif listens:
                room.known[slot, 1] = expected(listener, 0, names[slot], desk.user)
                least = min(least, room.known[slot, 1])
            if names[slot] < len(shares.score):
                put(room.first[slot], shares.first[names[slot]])
                room.score[slot] = shares.score[names[slot]]
            else:
                meet(net, 0, vectors[names[slot]], room, slot)
        for slot in range(count):
            if names[slot] < 0 and least < np.inf:
                room.known[slot, 1] = least
        total = know(net, 0, kept.seen[row], room, count)
        judge(net, 0, room, count, total)
        choose(room, count, size)
        to = 0
        for slot in range(count):
            if room.stays[slot]:
                _write(kept, arrivals, event, row, to, room, slot)
                to += 1


@loop
def _join(kept, arrivals, event, row, room):
    """What is kept, and the arrival; returns how many."""
    count, size = 0, kept.position.shape[1]
    while count < size and kept.position[row, count] >= 0:
        room.place[count], room.item[count] = kept.position[row, count], kept.item[row, count]
        room.rating[count], room.time[count] = kept.rating[row, count], kept.time[row, count]
        room.met[count] = kept.repeats[row, count]
        count += 1
    room.place[count], room.item[count] = kept.seen[row] - 1, arrivals.item[event]
    room.rating[count], room.time[count] = arrivals.rating[event], arrivals.time[event]
    before = 0
    for slot in range(count):
        if room.item[slot] == room.item[count]:
            before = max(before, room.met[slot])
    room.met[count] = before + 1
    return count + 1


@loop
def _write(kept, arrivals, event, row, to, room, slot):
    """A candidate into a slot of the sketch; slots are written in order, so none is lost."""
    newest = room.place[slot] == kept.seen[row] - 1
    kept.side[row, to] = arrivals.side[event] if newest else kept.side[row, slot]
    kept.position[row, to], kept.item[row, to] = room.place[slot], room.item[slot]
    kept.rating[row, to], kept.time[row, to] = room.rating[slot], room.time[slot]
    kept.repeats[row, to] = room.met[slot]


@loop
def keep_newest(kept, arrivals, key, newest):
    """The same where the `newest` stay, and of what is older the highest lots; `key` [users]."""
    size = kept.position.shape[1]
    for event in range(len(arrivals.row)):
        row = arrivals.row[event]
        count, met = 0, 0
        while count < size and kept.position[row, count] >= 0:
            if kept.item[row, count] == arrivals.item[event]:
                met = max(met, kept.repeats[row, count])
            count += 1
        place = kept.seen[row]
        kept.seen[row] += 1
        if count == size:
            goes = _dropped(kept.position[row], place, key[row], newest)
            if goes == size:
                continue  # the arrival
            for slot in range(goes + 1, size):
                _move(kept, row, slot)
            count -= 1
        kept.position[row, count], kept.item[row, count] = place, arrivals.item[event]
        kept.rating[row, count], kept.time[row, count] = (
            arrivals.rating[event],
            arrivals.time[event],
        )
        kept.repeats[row, count], kept.side[row, count] = met + 1, arrivals.side[event]


@loop
def _dropped(position, place, key, newest):
    """The slot of the lowest lot among the older ones, the arrival at `place` included.

    Among equals the oldest; where there is none that is older, the oldest of all.
    """
    worst, least = 0, 2.0
    for slot in range(len(position) + 1):
        at = position[slot] if slot < len(position) else place
        if place - at < newest:
            break
        score = quantize(_lot(key, at), SCORE)
        if score < least:
            worst, least = slot, score
    return worst


@loop
def _lot(key, place):
    """As `hashing.uniform`."""
    value = (key ^ (place * FIRST)) + GOLDEN
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * FIRST
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * SECOND
    value = value ^ ((value >> 31) & ((1 << 33) - 1))
    return ((value >> 11) & ((1 << 53) - 1)) * UNIT


@loop
def _move(kept, row, slot):
    """An entry to the slot before."""
    to = slot - 1
    kept.position[row, to], kept.item[row, to] = kept.position[row, slot], kept.item[row, slot]
    kept.rating[row, to], kept.time[row, to] = kept.rating[row, slot], kept.time[row, slot]
    kept.repeats[row, to], kept.side[row, to] = kept.repeats[row, slot], kept.side[row, slot]
