"""Triton programs of the softmax over all items (`softmax_cuda`); importing this needs triton.

Logits are computed tile by tile and not stored, as in attention: user vectors are queries, items
are keys and values. Rows are independent, so a program takes R rows through all steps. With REPEAT
the user vector has one entry per item: DIM shared entries, then ITEMS repeat entries. D, R and N
are powers of two.
"""

# mypy: disable-error-code="import, untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

import triton
import triton.language as tl

PADDING = tl.constexpr(-1e30)
"""Logit of the padding of the last tile."""


@triton.jit
def _tile(
    table, bias, low, DIM: tl.constexpr, ITEMS: tl.constexpr, D: tl.constexpr, N: tl.constexpr
):
    """Return items [N], whether they exist, vectors [N, D] (or 0), biases [N] (or PADDING)."""
    item, unit = low + tl.arange(0, N), tl.arange(0, D)
    there = item < ITEMS
    vector = tl.load(
        table + item[:, None] * DIM + unit[None, :], there[:, None] & (unit < DIM)[None, :], 0.0
    )
    return item, there, vector, tl.load(bias + item, there, PADDING)


@triton.jit
def _scores(user, vector, PRECISION: tl.constexpr):
    """Return the products of users and items, [R, N]."""
    return tl.dot(user, tl.trans(vector), input_precision=PRECISION)


@triton.jit
def descend(
    table, bias, repeat_scale, constant, step, decay, users, means, norms, rows, runs,
    STEPS: tl.constexpr, DIM: tl.constexpr, ITEMS: tl.constexpr, WIDTH: tl.constexpr,
    REPEAT: tl.constexpr, D: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute users[1], ..., users[STEPS], and mean item vector and norm of every step."""
    run = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    unit, here = tl.arange(0, D), row < rows
    line = run * rows + row
    shared = here[:, None] & (unit < DIM)[None, :]
    table += run * ITEMS * DIM
    bias += run * ITEMS
    stepping = tl.load(step + line, here, 0.0)[:, None]
    decays = tl.load(decay + line, here, 1.0)[:, None]
    layer = (run * 0 + runs) * rows * WIDTH  # in 64 bits
    weight = 0.0
    if REPEAT:
        weight = tl.load(repeat_scale + run)
    entry = line[:, None] * WIDTH + unit[None, :]
    user = tl.load(users + entry, shared, 0.0)
    constant_part = tl.load(constant + entry, shared, 0.0)
    norm = tl.zeros([R], tl.float32) - PADDING
    for at in range(STEPS):
        sooner = tl.maximum(at - 1, 0)
        # Loaded again in every step: Triton did not update a variable that began as an alias.
        before = tl.load(users + sooner * layer + entry, shared, 0.0)
        moves = tl.minimum(at, 1).to(tl.float32)  # repeat entries are one step behind
        keeps = 1.0 + moves * (decays - 1.0)
        most = tl.full([R], PADDING, tl.float32)
        total = tl.zeros([R], tl.float32)
        mean = tl.zeros([R, D], tl.float32)
        for low in range(0, ITEMS, N):
            item, there, vector, offset = _tile(table, bias, low, DIM, ITEMS, D, N)
            score = _scores(user, vector, PRECISION) + offset[None, :]
            if REPEAT:
                known = here[:, None] & there[None, :]
                place = line[:, None] * WIDTH + DIM + item[None, :]
                repeat = tl.load(users + sooner * layer + place, known, 0.0)
                old = _scores(before, vector, PRECISION) + offset[None, :] + weight * repeat
                probability = tl.exp(old - norm[:, None])
                constants = tl.load(constant + place, known, 0.0)
                repeat = keeps * repeat + moves * (constants + stepping * weight * probability)
                tl.store(users + at * layer + place, repeat, known)
                score += weight * repeat
            top = tl.maximum(most, tl.max(score, 1))
            probability = tl.exp(score - top[:, None])
            scale = tl.exp(most - top)
            total = total * scale + tl.sum(probability, 1)
            mean = tl.dot(probability, vector, mean * scale[:, None], input_precision=PRECISION)
            most = top
        mean = mean / total[:, None]
        norm = most + tl.log(total)
        user = decays * user + constant_part + stepping * mean
        slot = (at * runs * rows + line)[:, None] * DIM + unit[None, :]
        tl.store(means + slot, mean, shared)
        tl.store(norms + at * runs * rows + line, norm, here)
        tl.store(users + (at + 1) * layer + entry, user, shared)
        if REPEAT:
            tl.debug_barrier()  # the next step reads what this one wrote
    if REPEAT:
        last = users + (STEPS - 1) * layer
        before = tl.load(last + entry, shared, 0.0)
        for low in range(0, ITEMS, N):
            item, there, vector, offset = _tile(table, bias, low, DIM, ITEMS, D, N)
            known = here[:, None] & there[None, :]
            place = line[:, None] * WIDTH + DIM + item[None, :]
            repeat = tl.load(last + place, known, 0.0)
            old = _scores(before, vector, PRECISION) + offset[None, :] + weight * repeat
            probability = tl.exp(old - norm[:, None])
            repeat = (
                decays * repeat
                + tl.load(constant + place, known, 0.0)
                + stepping * weight * probability
            )
            tl.store(last + layer + place, repeat, known)


@triton.jit
def adjoint(
    table, bias, repeat_scale, step, decay, users, means, norms, adjoints, centres, repeat_parts,
    rows, runs,
    STEPS: tl.constexpr, DIM: tl.constexpr, ITEMS: tl.constexpr, WIDTH: tl.constexpr,
    REPEAT: tl.constexpr, D: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute adjoints[STEPS - 1], ..., adjoints[0], and the centre of every step."""
    run = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    unit, here = tl.arange(0, D), row < rows
    line = run * rows + row
    shared = here[:, None] & (unit < DIM)[None, :]
    table += run * ITEMS * DIM
    bias += run * ITEMS
    stepping = tl.load(step + line, here, 0.0)[:, None]
    decays = tl.load(decay + line, here, 1.0)[:, None]
    layer = (run * 0 + runs) * rows * WIDTH  # in 64 bits
    entry = line[:, None] * WIDTH + unit[None, :]
    gradient = tl.load(adjoints + STEPS * layer + entry, shared, 0.0)
    weight, repeat_part = 0.0, tl.zeros([R], tl.float32)
    if REPEAT:
        weight = tl.load(repeat_scale + run)
        user = tl.load(users + (STEPS - 1) * layer + entry, shared, 0.0)
        norm = tl.load(norms + (STEPS - 1) * runs * rows + line, here, 0.0)[:, None]
        for low in range(0, ITEMS, N):
            item, there, vector, offset = _tile(table, bias, low, DIM, ITEMS, D, N)
            known = here[:, None] & there[None, :]
            place = line[:, None] * WIDTH + DIM + item[None, :]
            repeat = tl.load(users + (STEPS - 1) * layer + place, known, 0.0)
            repeat_adjoint = tl.load(adjoints + STEPS * layer + place, known, 0.0)
            score = _scores(user, vector, PRECISION) + offset[None, :] + weight * repeat
            repeat_part += tl.sum(tl.exp(score - norm) * repeat_adjoint, 1)
    for back in range(STEPS):
        at = STEPS - 1 - back
        user = tl.load(users + at * layer + entry, shared, 0.0)
        norm = tl.load(norms + at * runs * rows + line, here, 0.0)[:, None]
        slot = (at * runs * rows + line)[:, None] * DIM + unit[None, :]
        centre = tl.sum(tl.load(means + slot, shared, 0.0) * gradient, 1) + weight * repeat_part
        tl.store(centres + at * runs * rows + line, centre, here)
        if REPEAT:
            tl.store(repeat_parts + at * runs * rows + line, repeat_part, here)
            sooner = tl.maximum(at - 1, 0)
            former = tl.load(users + sooner * layer + entry, shared, 0.0)
            former_norm = tl.load(norms + sooner * runs * rows + line, here, 0.0)[:, None]
        repeat_part = tl.zeros([R], tl.float32)
        change = tl.zeros([R, D], tl.float32)
        for low in range(0, ITEMS, N):
            item, there, vector, offset = _tile(table, bias, low, DIM, ITEMS, D, N)
            score = _scores(user, vector, PRECISION) + offset[None, :]
            drift = _scores(gradient, vector, PRECISION) - centre[:, None]
            if REPEAT:
                known = here[:, None] & there[None, :]
                place = line[:, None] * WIDTH + DIM + item[None, :]
                score += weight * tl.load(users + at * layer + place, known, 0.0)
                repeat_adjoint = tl.load(adjoints + (at + 1) * layer + place, known, 0.0)
                drift += weight * repeat_adjoint
            spread = drift * tl.exp(score - norm)
            change = tl.dot(spread, vector, change, input_precision=PRECISION)
            if REPEAT:
                repeat_adjoint = decays * repeat_adjoint + stepping * weight * spread
                tl.store(adjoints + at * layer + place, repeat_adjoint, known)
                repeat = tl.load(users + sooner * layer + place, known, 0.0)
                old = _scores(former, vector, PRECISION) + offset[None, :] + weight * repeat
                repeat_part += tl.sum(tl.exp(old - former_norm) * repeat_adjoint, 1)
        gradient = decays * gradient + stepping * change
        tl.store(adjoints + at * layer + entry, gradient, shared)
        if REPEAT:
            tl.debug_barrier()  # the next step reads what this one wrote


@triton.jit
def item_gradients(
    table, bias, repeat_scale, step, users, norms, adjoints, centres, to_table, to_bias, to_scale,
    rows, runs, chunk, STEPS: tl.constexpr, DIM: tl.constexpr, ITEMS: tl.constexpr,
    WIDTH: tl.constexpr, REPEAT: tl.constexpr, ADJOINT: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute gradients in N items from a chunk of all rows and steps.

    With ADJOINT: of the inner loop; else of the logarithm of the norm, with row weights `step`.
    """
    run, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    unit = tl.arange(0, D)
    item, there, vector, offset = _tile(
        table + run * ITEMS * DIM, bias + run * ITEMS, tl.program_id(0) * N, DIM, ITEMS, D, N
    )
    weight = 0.0
    if REPEAT:
        weight = tl.load(repeat_scale + run)
    layer = (run * 0 + runs) * rows * WIDTH  # in 64 bits
    found = tl.zeros([N, D], tl.float32)
    found_bias = tl.zeros([N], tl.float32)
    found_scale = tl.zeros([N], tl.float32)
    for low in range(part * chunk, (part + 1) * chunk, R):
        number = low + tl.arange(0, R)
        here = (number < STEPS * rows) & (number < (part + 1) * chunk)
        at, row = (number // rows).to(tl.int64), number % rows
        line = run * rows + row
        shared = here[:, None] & (unit < DIM)[None, :]
        entry = at * layer + line * WIDTH
        stepping = tl.load(step + line, here, 0.0)
        norm = tl.load(norms + at * runs * rows + line, here, 0.0)
        user = tl.load(users + entry[:, None] + unit[None, :], shared, 0.0)
        score = _scores(vector, user, PRECISION) + offset[:, None]
        repeat = 0.0
        if REPEAT:
            known = there[:, None] & here[None, :]
            place = entry[None, :] + DIM + item[:, None]
            repeat = tl.load(users + place, known, 0.0)
            score += weight * repeat
        spread = tl.exp(score - norm[None, :])
        if ADJOINT:
            gradient = tl.load(adjoints + layer + entry[:, None] + unit[None, :], shared, 0.0)
            pushed = stepping[:, None] * gradient
            found = tl.dot(spread, pushed, found, input_precision=PRECISION)
            centre = tl.load(centres + at * runs * rows + line, here, 0.0)
            drift = _scores(vector, gradient, PRECISION) - centre[None, :]
            if REPEAT:
                drift += weight * tl.load(adjoints + layer + place, known, 0.0)
            spread = spread * drift
        found = tl.dot(spread, stepping[:, None] * user, found, input_precision=PRECISION)
        pushed_bias = spread * stepping[None, :]
        found_bias += tl.sum(pushed_bias, 1)
        if REPEAT:
            found_scale += tl.sum(pushed_bias * repeat, 1)
    line = (part * runs + run) * ITEMS + item
    tl.store(
        to_table + line[:, None] * DIM + unit[None, :],
        found,
        there[:, None] & (unit < DIM)[None, :],
    )
    tl.store(to_bias + line, found_bias, there)
    if REPEAT:
        tl.store(to_scale + line, found_scale, there)
