"""The programs behind `walking`, in Triton: importing this needs triton.

Every program walks one user of one run from refresh to refresh: join, score, choose, note. Shapes
are powers of two: N candidates, K slots of the sketch, D entries of an item's vector, H units.
Sums are over numbers on a grid, so their order does not matter; multiplying and adding at once is
asked for by name (`tl.fma`) where it is exact, and must be off (`enable_fp_fusion`) elsewhere.
"""

# mypy: disable-error-code="import, untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

import os

import triton
import triton.language as tl
from triton.language.extra import libdevice

from dips.numerics.exact import SCORE_BITS, STATE_BITS, STATE_LIMIT

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")
"""Whether programs run in Triton's interpreter, which lacks the library's functions."""
STATE, SCORE = tl.constexpr(2.0**STATE_BITS), tl.constexpr(2.0**SCORE_BITS)
LIMIT = tl.constexpr(STATE_LIMIT)
FAR = tl.constexpr(2.0**50)
"""Scores are cut off here, as selectors do."""
WHOLE = tl.constexpr(2.0**52)
"""From here on, all numbers of float64 are whole."""
LONG = tl.constexpr(16.0)
"""Logarithm of the time that counts as one."""


@triton.jit
def quantize(value, SCALE: tl.constexpr):
    """The nearest multiple of 1 / SCALE, halves to even: as `exact.quantize`."""
    scaled = value * SCALE
    size = tl.abs(scaled)
    near = tl.where(size < WHOLE, (size + WHOLE) - WHOLE, size)
    return tl.where(scaled < 0, -near, near) * (1.0 / SCALE)


@triton.jit
def _fixed(value):
    """A state as a network on the grid uses it: as `exact.rounded`."""
    scaled = tl.minimum(tl.maximum(value, -LIMIT), LIMIT) * STATE
    return ((scaled + 1.5 * WHOLE) - 1.5 * WHOLE) * (1.0 / STATE)


@triton.jit
def _log1p(value):
    """The logarithm of 1 + a whole number."""
    if INTERPRETED:
        return tl.log(value + 1.0)
    else:
        return libdevice.log1p(value)


@triton.jit
def candidates(
    items, position, repeats, begin, row, seen, period, SIZE: tl.constexpr, N: tl.constexpr
):
    """Positions, items and repeats of all candidates; how many newer ones have the same item."""
    slot = tl.arange(0, N)
    old, there = slot < SIZE, slot < SIZE + period
    place = tl.load(position + row * SIZE + slot, old, 0)
    place = tl.where(old, place, seen - period - SIZE + slot)
    item = tl.load(items + begin + place, there, -1)
    met = tl.load(repeats + row * SIZE + slot, old, 0).to(tl.int32)
    left, right = slot[:, None], slot[None, :]
    same = (item[:, None] == item[None, :]) & (right < SIZE + period)
    before = tl.max(tl.where(same & (right < SIZE), met[None, :], 0), 1)
    since = tl.sum((same & (right >= SIZE) & (right <= left)).to(tl.int32), 1)
    twins = tl.sum((same & (right > left)).to(tl.int32), 1)
    return place, item, tl.where(old, met, before + since), twins


@triton.jit
def remember(
    score, place, met, begin, row, first, seen, period, hold, length, warmup,
    position, repeats, kept, kept_repeats, kept_scores, scores,
    SIZE: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Keep the SIZE highest scores, the newer of equals, for the predictions that follow."""
    slot = tl.arange(0, N)
    there = slot < SIZE + period
    quantized = tl.minimum(tl.maximum(quantize(score, SCORE), -FAR), FAR)
    quantized = tl.where(
        score == score, quantized, 2 * FAR
    )  # what is no number first, as torch sorts
    left, right = slot[:, None], slot[None, :]
    mine, other = quantized[:, None], quantized[None, :]
    above = (other > mine) | ((other == mine) & (right > left))
    rank = tl.sum((above & (right < SIZE + period)).to(tl.int32), 1)
    stays = there & (rank < SIZE)
    to = tl.cumsum(stays.to(tl.int32), 0) - 1
    tl.store(position + row * SIZE + to, place, stays)
    tl.store(repeats + row * SIZE + to, met, stays)
    if scores is not None:
        tl.store(scores + row * SIZE + to, score, stays)
    for step in range(seen, seen + hold):
        counts = there & (rank < tl.where((step < length) & (step >= warmup), SIZE, 0))
        line = (first + step) * SIZE + to
        tl.store(kept + line, begin + place, counts)
        if kept_repeats is not None:
            tl.store(kept_repeats + line, met, counts)
        if kept_scores is not None:
            tl.store(kept_scores + line, score, counts)
    tl.debug_barrier()  # the next refresh reads what this one wrote


@triton.jit
def adapted(
    items, ratings, position, begin, row, vectors, intercept, prior, dials,
    SIZE: tl.constexpr, STEPS: tl.constexpr, GRAM: tl.constexpr, PULL: tl.constexpr,
    DIM: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The user's vector [D] and bias after reading the sketch: as `descent.descend_linear`."""
    slot, unit = tl.arange(0, K), tl.arange(0, D)
    there = slot < SIZE
    event = begin + tl.load(position + row * SIZE + slot, there, 0)
    item = tl.load(items + event, there, 0)
    rating = tl.load(ratings + event, there, 0).to(tl.float64)
    loading, rate, pull = tl.load(dials), tl.load(dials + 1), tl.load(dials + 2)
    begun, begun_bias = tl.load(prior + unit, unit < DIM, 0), tl.load(prior + DIM)
    rows = tl.load(vectors + item[:, None] * D + unit[None, :], there[:, None], 0)
    own = tl.load(intercept + item, there, 0)
    first = own + tl.sum(rows * begun[None, :], 1) + loading * begun_bias
    score, user, bias = first, begun, begun_bias
    if GRAM:  # fewer features than dimensions: it is their coefficients that descend
        gram = tl.zeros((K, K), tl.float64) + loading * loading
        for place in range(DIM):
            left = tl.load(vectors + item[:, None] * D + place, there[:, None], 0)
            right = tl.load(vectors + item[None, :] * D + place, there[None, :], 0)
            gram = tl.fma(left, right, gram)
        gram = quantize(gram, STATE)
        share = tl.zeros((K,), tl.float64)
        for _ in range(STEPS):
            fall = 2 * (score - rating)
            if PULL:
                fall = fall + pull * share
            share = tl.where(there, quantize(share - rate * fall, STATE), 0.0)
            score = first + tl.sum(gram * share[None, :], 1)
        user = quantize(begun + tl.sum(rows * share[:, None], 0), STATE)
        bias = quantize(begun_bias + loading * tl.sum(share, 0), STATE)
    else:
        for _ in range(STEPS):
            error = tl.where(there, 2 * (score - rating), 0.0)
            fall, fall_bias = tl.sum(rows * error[:, None], 0), loading * tl.sum(error, 0)
            if PULL:
                fall = fall + pull * (user - begun)
                fall_bias = fall_bias + pull * (bias - begun_bias)
            user, bias = (
                quantize(user - rate * fall, STATE),
                quantize(bias - rate * fall_bias, STATE),
            )
            score = own + tl.sum(rows * user[None, :], 1) + loading * bias
    return user, bias


@triton.jit
def listened(
    items, position, begin, row, seen, pulls, bend, strength, dials, ages,
    SIZE: tl.constexpr, STEPS: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The way [D] of a user's vector from the start: as `predicted_score.predicted_score`."""
    slot, unit = tl.arange(0, K), tl.arange(0, D)
    there = slot < SIZE
    place = tl.load(position + row * SIZE + slot, there, 0)
    item = tl.load(items + begin + place, there, 0)
    left = tl.load(strength + tl.minimum(seen - 1 - place, ages - 1), there, 0)
    rows = tl.load(pulls + item[:, None] * D + unit[None, :], there[:, None], 0)
    pulled, total = tl.sum(rows * left[:, None], 0), tl.sum(left, 0)
    rate = tl.load(dials)
    pace = rate / tl.maximum(rate * total * tl.load(dials + 1), 1.0)
    back = tl.load(bend + unit[:, None] * D + unit[None, :])
    way = quantize(pace * pulled, STATE)
    for _ in range(STEPS - 1):
        home = tl.sum(back * way[:, None], 0)
        way = quantize(way + pace * (pulled - total * home), STATE)
    return way


@triton.jit(do_not_specialize=["users", "runs", "count", "width", "ages"])
def set_walk(
    start, length, warmup, base, due, refreshes, items, ratings, times,
    position, repeats, kept, kept_repeats, notes, kept_scores, scores,
    scale, table, straight, own, direct, alone, others, bias, last, logs, ranks,
    vectors, intercept, prior, dials, pulls, bend, strength, scratch,
    users, runs, count, width, ages,
    SIZE: tl.constexpr, STEPS: tl.constexpr, GRAM: tl.constexpr, PULL: tl.constexpr,
    DIM: tl.constexpr, HIDDEN: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Walk one user under a network over sets.

    With a `prior` it is told residuals, with `pulls` predicted_scores.
    """
    run = (tl.program_id(0) % runs).to(tl.int64)
    row = run * users + tl.program_id(0) // runs  # the longest histories of all runs come first
    begin, first = tl.load(start + row), tl.load(base + row)
    end, cold = tl.load(length + row), tl.load(warmup + row)
    center, spread = tl.load(scale + run * 3), tl.load(scale + run * 3 + 1)
    slope = tl.load(scale + run * 3 + 2)
    slot, unit = tl.arange(0, N), tl.arange(0, H)
    states = scratch + tl.program_id(0).to(tl.int64) * (N + 1) * H  # [N, H], then their mean [H]
    own += run * 7 * H
    direct += run * 7
    alone += run * HIDDEN * H
    others += run * HIDDEN * H
    if vectors is not None:
        vectors += run * count * D
        intercept += run * count
        if pulls is not None:
            pulls += run * count * D
            bend += run * D * D
            strength += run * ages
            dials += run * 2
        else:
            prior += run * (DIM + 1)
            dials += run * 3
    down, across = slot[:, None], unit[None, :]
    shift = tl.load(bias + run * H + across)
    outward = tl.load(last + run * H + across)
    for turn in range(tl.load(due + row)):
        seen, period = tl.load(refreshes + 3 * turn), tl.load(refreshes + 3 * turn + 1)
        hold = tl.load(refreshes + 3 * turn + 2)
        place, item, met, twins = candidates(
            items, position, repeats, begin, row, seen, period, SIZE, N
        )
        there = slot < SIZE + period
        rating = tl.load(ratings + begin + place, there, 0).to(tl.float64)
        time = tl.load(times + begin + place, there, -(1 << 62))
        total = (SIZE + period).to(tl.float64)
        newer = (SIZE + period - 1 - slot).to(tl.float64)
        told = tl.zeros((N,), tl.float64)
        if vectors is not None:
            if pulls is not None:
                user = listened(
                    items, position, begin, row, seen, pulls, bend, strength, dials, ages,
                    SIZE, STEPS, K, D,
                )  # fmt: skip
            else:
                user, user_bias = adapted(
                    items, ratings, position, begin, row, vectors, intercept, prior, dials,
                    SIZE, STEPS, GRAM, PULL, DIM, K, D,
                )  # fmt: skip
            entry = tl.arange(0, D)
            rows = tl.load(vectors + item[:, None] * D + entry[None, :], there[:, None], 0)
            told = tl.load(intercept + item, there, 0) + tl.sum(rows * user[None, :], 1)
            if pulls is None:
                told = (told + tl.load(dials) * user_bias - rating) * -2.0
            if notes is not None:
                open_to = tl.where((seen < end) & (seen >= cold), SIZE + period, 0)
                tl.store(notes + (first + seen) * width + slot, told, slot < open_to)
        elapsed = tl.maximum(tl.max(time, 0) - time, 0)
        f0 = _fixed((rating - center) / spread)
        f1 = _fixed(told / spread)
        f2 = tl.load(logs + seen - 1 - place, there, 0)
        f3 = tl.load(ranks + period * N + slot)
        f4 = _fixed(_log1p(tl.where(there, elapsed, 0).to(tl.float64)) / LONG)
        f5 = tl.load(logs + met, there, 0)
        f6 = twins.to(tl.float64)
        score = tl.load(straight + run * count + item, there, 0) - slope * newer
        score += f0 * tl.load(direct) + f1 * tl.load(direct + 1) + f2 * tl.load(direct + 2)
        score += f3 * tl.load(direct + 3) + f4 * tl.load(direct + 4) + f5 * tl.load(direct + 5)
        score += f6 * tl.load(direct + 6)
        line = (run * count + item)[:, None] * H + unit[None, :]
        state = tl.load(table + line, there[:, None], 0)
        state = tl.fma(f0[:, None], tl.load(own + across), state)
        state = tl.fma(f1[:, None], tl.load(own + H + across), state)
        state = tl.fma(f2[:, None], tl.load(own + 2 * H + across), state)
        state = tl.fma(f3[:, None], tl.load(own + 3 * H + across), state)
        state = tl.fma(f4[:, None], tl.load(own + 4 * H + across), state)
        state = tl.fma(f5[:, None], tl.load(own + 5 * H + across), state)
        state = tl.fma(f6[:, None], tl.load(own + 6 * H + across), state)
        state = tl.where(there[:, None], _fixed(tl.maximum(state, 0.0)), 0.0)
        tl.store(states + down * H + across, state)
        tl.store(states + N * H + unit, _fixed(tl.sum(state, 0) / total))
        tl.debug_barrier()  # below every thread reads what others wrote
        second = tl.zeros((N, H), tl.float64)
        meeting = shift
        for k in range(HIDDEN):
            one, mean = tl.load(states + down * H + k), tl.load(states + N * H + k)
            second = tl.fma(one, tl.load(alone + k * H + across), second)
            meeting = tl.fma(mean, tl.load(others + k * H + across), meeting)
        second = _fixed(tl.maximum(second + meeting, 0.0))
        score += tl.sum(second * outward, 1)
        remember(
            score, place, met, begin, row, first, seen, period, hold, end, cold,
            position, repeats, kept, kept_repeats, kept_scores, scores, SIZE, N,
        )  # fmt: skip


@triton.jit(do_not_specialize=["users", "runs", "count"])
def item_walk(
    start, length, warmup, base, due, refreshes, items, ratings,
    position, repeats, kept, kept_repeats, kept_scores, scores,
    enter, enter_bias, middle, middle_bias, leave, leave_bias, scratch, users, runs, count,
    SIZE: tl.constexpr, HIDDEN: tl.constexpr, N: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Walk one user under a network from ratings to a score for each item."""
    run = (tl.program_id(0) % runs).to(tl.int64)
    row = run * users + tl.program_id(0) // runs
    begin, first = tl.load(start + row), tl.load(base + row)
    end, cold = tl.load(length + row), tl.load(warmup + row)
    slot, unit = tl.arange(0, N), tl.arange(0, H)
    states = scratch + tl.program_id(0).to(tl.int64) * H
    middle += run * HIDDEN * H
    inward = tl.load(enter_bias + run * H + unit)
    shift = tl.load(middle_bias + run * H + unit)
    for turn in range(tl.load(due + row)):
        seen, period = tl.load(refreshes + 3 * turn), tl.load(refreshes + 3 * turn + 1)
        hold = tl.load(refreshes + 3 * turn + 2)
        place, item, met, _ = candidates(
            items, position, repeats, begin, row, seen, period, SIZE, N
        )
        there = slot < SIZE + period
        rating = _fixed(tl.load(ratings + begin + place, there, 0).to(tl.float64))
        line = (run * count + item)[:, None] * H + unit[None, :]
        rows = tl.load(enter + line, there[:, None], 0)
        state = _fixed(tl.maximum(tl.sum(rows * rating[:, None], 0) + inward, 0.0))
        tl.store(states + unit, state)
        tl.debug_barrier()  # below every thread reads what others wrote
        second = shift
        for k in range(HIDDEN):
            second = tl.fma(tl.load(middle + k * H + unit), tl.load(states + k), second)
        second = _fixed(tl.maximum(second, 0.0))
        rows = tl.load(leave + line, there[:, None], 0)
        score = tl.load(leave_bias + run * count + item, there, 0)
        score += tl.sum(rows * second[None, :], 1)
        remember(
            score, place, met, begin, row, first, seen, period, hold, end, cold,
            position, repeats, kept, kept_repeats, kept_scores, scores, SIZE, N,
        )  # fmt: skip
