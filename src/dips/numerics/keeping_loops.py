"""Sketches that are kept up to date from arrivals, as one compiled loop: this needs numba.

A network over sets decides, and the dot product with squared error tells it residuals. The same
bits as `sketch.update` leaves arrival by arrival.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from dips.numerics.grid_loops import loop
from dips.numerics.reading_loops import adapt, desk_for, predicted
from dips.numerics.set_loops import choose, judge, know, meet, meet_nothing, room_for


@loop
def keep(kept, arrivals, number, net, reader):
    """Take arrivals in their order into the sketches of their users, of one run.

    `number` tells the run's number of each item code, -1 of those that it does not know: these have
    no vector and no residual, and are not read.
    """
    size = kept.position.shape[1]
    room = room_for(size + 1, net.bias.shape[1], net.enter.shape[1])
    desk = desk_for(size, reader.prior.shape[1])
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
        adapt(reader, 0, names[:size], room.rating, desk)
        for slot in range(count):
            room.known[slot, 1] = 0.0
            if names[slot] < 0:
                meet_nothing(net, 0, room, slot)
                continue
            output = predicted(reader, 0, names[slot], desk.user)
            room.known[slot, 1] = (output - room.rating[slot]) * -2.0
            meet(net, 0, reader.vectors[0, names[slot]], room, slot)
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
