"""The programs of `walk_kernels` again, as compiled loops for the CPU: importing this needs numba.

Every loop walks users one after the other, from refresh to refresh: join, score, choose, note. What
is absent has no entries.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from dips.kernels.numba_adaptation import adapt, desk_for, expected, listen, predicted
from dips.kernels.numba_fixed_point import add, dot, fixed, loop, multiply, put
from dips.kernels.numba_set_network import choose, judge, know, room_for


@loop
def join(way, memory, row, seen, period, room):
    """The candidates of a refresh: what is kept, then what came since; returns how many."""
    size = memory.position.shape[1]
    begin = way.start[row]
    for slot in range(size + period):
        old = slot < size
        room.place[slot] = memory.position[row, slot] if old else seen - period - size + slot
        event = begin + room.place[slot]
        room.item[slot], room.time[slot] = way.item[event], way.time[event]
        room.rating[slot] = way.rating[event]
        room.met[slot] = memory.repeats[row, slot] if old else 1
    for slot in range(size, size + period):
        before = 0
        for other in range(slot):
            if room.item[other] == room.item[slot]:
                if other < size:
                    before = max(before, room.met[other])
                else:
                    room.met[slot] += 1
        room.met[slot] += before
    return size + period


@loop
def remember(way, memory, row, seen, hold, room, count):
    """Keep the highest scores, the newer of equals, for the predictions that follow."""
    size = memory.position.shape[1]
    choose(room, count, size)
    begin, first = way.start[row], way.base[row]
    low, high = max(seen, way.warmup[row]), min(seen + hold, way.length[row])
    to = 0
    for slot in range(count):
        if not room.stays[slot]:
            continue
        memory.position[row, to] = room.place[slot]
        memory.repeats[row, to] = room.met[slot]
        if memory.scores.size:
            memory.scores[row, to] = room.score[slot]
        for line in range(first + low, first + high):
            memory.kept[line, to] = begin + room.place[slot]
            if memory.kept_repeats.size:
                memory.kept_repeats[line, to] = room.met[slot]
            if memory.kept_scores.size:
                memory.kept_scores[line, to] = room.score[slot]
        to += 1


@loop
def set_walk(way, memory, layers, reader, listener, width, first, stride):
    """Walk every `stride`-th user under a network over sets, told what has vectors."""
    rows, size = memory.position.shape
    users = rows // len(layers.bias)
    room = room_for(width, layers.bias.shape[1], 0)
    reads, listens = reader.vectors.size > 0, listener.vectors.size > 0
    wide = memory.told.shape[1]
    desk = desk_for(size, reader.prior.shape[1] if reads else listener.vectors.shape[2])
    for row in range(first, rows, stride):
        run = row // users
        for turn in range(way.due[row]):
            seen, period = way.refreshes[turn, 0], way.refreshes[turn, 1]
            count = join(way, memory, row, seen, period, room)
            if reads:
                adapt(reader, run, room.item[:size], room.rating, desk)
            elif listens:
                listen(listener, run, room.item[:size], room.place, seen, desk)
            noting = wide > 0 and way.warmup[row] <= seen < way.length[row]
            for slot in range(count):
                told = 0.0
                if reads:
                    output = predicted(reader, run, room.item[slot], desk.user)
                    told = (output - room.rating[slot]) * -2.0
                elif listens:
                    told = expected(listener, run, room.item[slot], desk.user)
                if noting:
                    memory.told[way.base[row] + seen, slot] = told
                room.known[slot, 1] = told
                put(room.first[slot], layers.table[run, room.item[slot]])
                room.score[slot] = layers.straight[run, room.item[slot]]
            total = know(layers, run, seen, room, count)
            judge(layers, run, room, count, total)
            remember(way, memory, row, seen, way.refreshes[turn, 2], room, count)


@loop
def item_walk(way, memory, layers, width, first, stride):
    """Walk every `stride`-th user under a network from ratings to a score for each item."""
    rows = len(memory.position)
    users = rows // len(layers.enter)
    hidden = layers.enter.shape[2]
    room = room_for(width, hidden, 0)
    for row in range(first, rows, stride):
        run = row // users
        for turn in range(way.due[row]):
            seen, period = way.refreshes[turn, 0], way.refreshes[turn, 1]
            count = join(way, memory, row, seen, period, room)
            units, second = room.mean, room.second[0]
            put(units, layers.enter_bias[run])
            for slot in range(count):
                add(units, fixed(room.rating[slot]), layers.enter[run, room.item[slot]])
            put(second, layers.middle_bias[run])
            for unit in range(hidden):
                units[unit] = fixed(max(units[unit], 0.0))
            multiply(second, units, layers.middle[run], room.some)
            for unit in range(hidden):
                second[unit] = fixed(max(second[unit], 0.0))
            for slot in range(count):
                item = room.item[slot]
                score = dot(layers.leave[run, item], second)
                room.score[slot] = score + layers.leave_bias[run, item]
            remember(way, memory, row, seen, way.refreshes[turn, 2], room, count)
