"""The programs behind `softmax_fused`, in Triton: importing this needs triton.

Logits of all items are made tile by tile, used and forgotten, as attention does it: a user's vector
is the query, the items are keys and values. Every row descends on its own, so one program takes R
rows through all steps. With OWN each item has an entry of its own in the user's vector, and vectors
are stored whole, DIM shared entries before ITEMS own ones. D, R and N are powers of two.
"""

# mypy: disable-error-code="import, untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

import triton
import triton.language as tl

FAR = tl.constexpr(-1e30)
"""The logit of an item that does not exist."""


@triton.jit
def _tile(
    table, bias, low, DIM: tl.constexpr, ITEMS: tl.constexpr, D: tl.constexpr, N: tl.constexpr
):
    """Which items, whether they exist, their vectors [N, D] (else 0) and biases [N] (else FAR)."""
    item, unit = low + tl.arange(0, N), tl.arange(0, D)
    there = item < ITEMS
    vector = tl.load(
        table + item[:, None] * DIM + unit[None, :], there[:, None] & (unit < DIM)[None, :], 0.0
    )
    return item, there, vector, tl.load(bias + item, there, FAR)


@triton.jit
def _scores(user, vector, PRECISION: tl.constexpr):
    """[R, N] products of users and items."""
    return tl.dot(user, tl.trans(vector), input_precision=PRECISION)


@triton.jit
def descend(
    table, bias, loading, lift, step, stay, users, means, norms, rows, runs,
    STEPS: tl.constexpr, DIM: tl.constexpr, ITEMS: tl.constexpr, WIDTH: tl.constexpr,
    OWN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From users[0] to users[STEPS]; notes the mean of the items and the norm of every step."""
    run = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    unit, here = tl.arange(0, D), row < rows
    line = run * rows + row
    shared = here[:, None] & (unit < DIM)[None, :]
    table += run * ITEMS * DIM
    bias += run * ITEMS
    going = tl.load(step + line, here, 0.0)[:, None]
    staying = tl.load(stay + line, here, 1.0)[:, None]
    layer = (run * 0 + runs) * rows * WIDTH  # in 64 bits
    weight = 0.0
    if OWN:
        weight = tl.load(loading + run)
    entry = line[:, None] * WIDTH + unit[None, :]
    user = tl.load(users + entry, shared, 0.0)
    lifted = tl.load(lift + entry, shared, 0.0)
    norm = tl.zeros([R], tl.float32) - FAR
    for at in range(STEPS):
        sooner = tl.maximum(at - 1, 0)
        # Not carried from step to step: what begins as another's alias stayed as it began.
        before = tl.load(users + sooner * layer + entry, shared, 0.0)
        moves = tl.minimum(at, 1).to(tl.float32)  # own entries follow a step behind
        keeps = 1.0 + moves * (staying - 1.0)
        most = tl.full([R], FAR, tl.float32)
        total = tl.zeros([R], tl.float32)
        mean = tl.zeros([R, D], tl.float32)
        for low in range(0, ITEMS, N):
            item, there, vector, offset = _tile(table, bias, low, DIM, ITEMS, D, N)
            score = _scores(user, vector, PRECISION) + offset[None, :]
            if OWN:
                known = here[:, None] & there[None, :]
                place = line[:, None] * WIDTH + DIM + item[None, :]
                own = tl.load(users + sooner * layer + place, known, 0.0)
                old = _scores(before, vector, PRECISION) + offset[None, :] + weight * own
                chance = tl.exp(old - norm[:, None])
                lifts = tl.load(lift + place, known, 0.0)
                own = keeps * own + moves * (lifts + going * weight * chance)
                tl.store(users + at * layer + place, own, known)
                score += weight * own
            top = tl.maximum(most, tl.max(score, 1))
            chance = tl.exp(score - top[:, None])
            scale = tl.exp(most - top)
            total = total * scale + tl.sum(chance, 1)
            mean = tl.dot(chance, vector, mean * scale[:, None], input_precision=PRECISION)
            most = top
        mean = mean / total[:, None]
        norm = most + tl.log(total)
        user = staying * user + lifted + going * mean
        slot = (at * runs * rows + line)[:, None] * DIM + unit[None, :]
        tl.store(means + slot, mean, shared)
        tl.store(norms + at * runs * rows + line, norm, here)
        tl.store(users + (at + 1) * layer + entry, user, shared)
        if OWN:
            tl.debug_barrier()  # the next step reads what this one wrote
    if OWN:
        last = users + (STEPS - 1) * layer
        before = tl.load(last + entry, shared, 0.0)
        for low in range(0, ITEMS, N):
            item, there, vector, offset = _tile(table, bias, low, DIM, ITEMS, D, N)
            known = here[:, None] & there[None, :]
            place = line[:, None] * WIDTH + DIM + item[None, :]
            own = tl.load(last + place, known, 0.0)
            old = _scores(before, vector, PRECISION) + offset[None, :] + weight * own
            chance = tl.exp(old - norm[:, None])
            own = staying * own + tl.load(lift + place, known, 0.0) + going * weight * chance
            tl.store(last + layer + place, own, known)


@triton.jit
def ascend(
    table, bias, loading, step, stay, users, means, norms, slopes, centres, withins, rows, runs,
    STEPS: tl.constexpr, DIM: tl.constexpr, ITEMS: tl.constexpr, WIDTH: tl.constexpr,
    OWN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The way back, from slopes[STEPS] to slopes[0]; notes the centre of every step."""
    run = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    unit, here = tl.arange(0, D), row < rows
    line = run * rows + row
    shared = here[:, None] & (unit < DIM)[None, :]
    table += run * ITEMS * DIM
    bias += run * ITEMS
    going = tl.load(step + line, here, 0.0)[:, None]
    staying = tl.load(stay + line, here, 1.0)[:, None]
    layer = (run * 0 + runs) * rows * WIDTH  # in 64 bits
    entry = line[:, None] * WIDTH + unit[None, :]
    slope = tl.load(slopes + STEPS * layer + entry, shared, 0.0)
    weight, within = 0.0, tl.zeros([R], tl.float32)
    if OWN:
        weight = tl.load(loading + run)
        user = tl.load(users + (STEPS - 1) * layer + entry, shared, 0.0)
        norm = tl.load(norms + (STEPS - 1) * runs * rows + line, here, 0.0)[:, None]
        for low in range(0, ITEMS, N):
            item, there, vector, offset = _tile(table, bias, low, DIM, ITEMS, D, N)
            known = here[:, None] & there[None, :]
            place = line[:, None] * WIDTH + DIM + item[None, :]
            own = tl.load(users + (STEPS - 1) * layer + place, known, 0.0)
            along = tl.load(slopes + STEPS * layer + place, known, 0.0)
            score = _scores(user, vector, PRECISION) + offset[None, :] + weight * own
            within += tl.sum(tl.exp(score - norm) * along, 1)
    for back in range(STEPS):
        at = STEPS - 1 - back
        user = tl.load(users + at * layer + entry, shared, 0.0)
        norm = tl.load(norms + at * runs * rows + line, here, 0.0)[:, None]
        slot = (at * runs * rows + line)[:, None] * DIM + unit[None, :]
        centre = tl.sum(tl.load(means + slot, shared, 0.0) * slope, 1) + weight * within
        tl.store(centres + at * runs * rows + line, centre, here)
        if OWN:
            tl.store(withins + at * runs * rows + line, within, here)
            sooner = tl.maximum(at - 1, 0)
            former = tl.load(users + sooner * layer + entry, shared, 0.0)
            former_norm = tl.load(norms + sooner * runs * rows + line, here, 0.0)[:, None]
        within = tl.zeros([R], tl.float32)
        change = tl.zeros([R, D], tl.float32)
        for low in range(0, ITEMS, N):
            item, there, vector, offset = _tile(table, bias, low, DIM, ITEMS, D, N)
            score = _scores(user, vector, PRECISION) + offset[None, :]
            drift = _scores(slope, vector, PRECISION) - centre[:, None]
            if OWN:
                known = here[:, None] & there[None, :]
                place = line[:, None] * WIDTH + DIM + item[None, :]
                score += weight * tl.load(users + at * layer + place, known, 0.0)
                along = tl.load(slopes + (at + 1) * layer + place, known, 0.0)
                drift += weight * along
            spread = drift * tl.exp(score - norm)
            change = tl.dot(spread, vector, change, input_precision=PRECISION)
            if OWN:
                along = staying * along + going * weight * spread
                tl.store(slopes + at * layer + place, along, known)
                own = tl.load(users + sooner * layer + place, known, 0.0)
                old = _scores(former, vector, PRECISION) + offset[None, :] + weight * own
                within += tl.sum(tl.exp(old - former_norm) * along, 1)
        slope = staying * slope + going * change
        tl.store(slopes + at * layer + entry, slope, shared)
        if OWN:
            tl.debug_barrier()  # the next step reads what this one wrote


@triton.jit
def gather(
    table, bias, loading, step, users, norms, slopes, centres, to_table, to_bias, to_loading,
    rows, runs, share, STEPS: tl.constexpr, DIM: tl.constexpr, ITEMS: tl.constexpr,
    WIDTH: tl.constexpr, OWN: tl.constexpr, CURVED: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients in N items, from a share of all rows and steps.

    CURVED: of the way back; else of the logarithm of the norm, where `step` weighs the rows.
    """
    run, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    unit = tl.arange(0, D)
    item, there, vector, offset = _tile(
        table + run * ITEMS * DIM, bias + run * ITEMS, tl.program_id(0) * N, DIM, ITEMS, D, N
    )
    weight = 0.0
    if OWN:
        weight = tl.load(loading + run)
    layer = (run * 0 + runs) * rows * WIDTH  # in 64 bits
    found = tl.zeros([N, D], tl.float32)
    found_bias = tl.zeros([N], tl.float32)
    found_loading = tl.zeros([N], tl.float32)
    for low in range(part * share, (part + 1) * share, R):
        number = low + tl.arange(0, R)
        here = (number < STEPS * rows) & (number < (part + 1) * share)
        at, row = (number // rows).to(tl.int64), number % rows
        line = run * rows + row
        shared = here[:, None] & (unit < DIM)[None, :]
        entry = at * layer + line * WIDTH
        going = tl.load(step + line, here, 0.0)
        norm = tl.load(norms + at * runs * rows + line, here, 0.0)
        user = tl.load(users + entry[:, None] + unit[None, :], shared, 0.0)
        score = _scores(vector, user, PRECISION) + offset[:, None]
        own = 0.0
        if OWN:
            known = there[:, None] & here[None, :]
            place = entry[None, :] + DIM + item[:, None]
            own = tl.load(users + place, known, 0.0)
            score += weight * own
        spread = tl.exp(score - norm[None, :])
        if CURVED:
            slope = tl.load(slopes + layer + entry[:, None] + unit[None, :], shared, 0.0)
            pushed = going[:, None] * slope
            found = tl.dot(spread, pushed, found, input_precision=PRECISION)
            centre = tl.load(centres + at * runs * rows + line, here, 0.0)
            drift = _scores(vector, slope, PRECISION) - centre[None, :]
            if OWN:
                drift += weight * tl.load(slopes + layer + place, known, 0.0)
            spread = spread * drift
        found = tl.dot(spread, going[:, None] * user, found, input_precision=PRECISION)
        pushed_bias = spread * going[None, :]
        found_bias += tl.sum(pushed_bias, 1)
        if OWN:
            found_loading += tl.sum(pushed_bias * own, 1)
    line = (part * runs + run) * ITEMS + item
    tl.store(
        to_table + line[:, None] * DIM + unit[None, :],
        found,
        there[:, None] & (unit < DIM)[None, :],
    )
    tl.store(to_bias + line, found_bias, there)
    if OWN:
        tl.store(to_loading + line, found_loading, there)
