"""TrainingRollouts under rules that ask a recommender, in Triton: importing this needs triton.

As in `walk_kernels`, every program walks one user of one run, and shapes are powers of two: N
candidates, K slots of the sketch, D entries of an item's vector. The recommender is the dot
product with squared error.
"""

# mypy: disable-error-code="import, untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

import triton
import triton.language as tl

from dips.kernels.triton_rollout import SCORE, STATE, adapted, candidates, quantize, remember


@triton.jit(do_not_specialize=["users", "runs", "count"])
def hardest_walk(
    start, length, warmup, base, due, refreshes, items, ratings,
    position, repeats, kept, kept_repeats, kept_scores, scores,
    vectors, intercept, prior, dials, users, runs, count,
    SIZE: tl.constexpr, STEPS: tl.constexpr, GRAM: tl.constexpr, PULL: tl.constexpr,
    DIM: tl.constexpr, N: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Keep what the user, as adapted to the sketch, predicts worst."""
    run = (tl.program_id(0) % runs).to(tl.int64)
    row = run * users + tl.program_id(0) // runs  # the longest histories of all runs come first
    begin, first = tl.load(start + row), tl.load(base + row)
    end, cold = tl.load(length + row), tl.load(warmup + row)
    slot, entry = tl.arange(0, N), tl.arange(0, D)
    vectors += run * count * D
    intercept += run * count
    prior += run * (DIM + 1)
    dials += run * 3
    for turn in range(tl.load(due + row)):
        seen, period = tl.load(refreshes + 3 * turn), tl.load(refreshes + 3 * turn + 1)
        hold = tl.load(refreshes + 3 * turn + 2)
        place, item, met, _twins = candidates(
            items, position, repeats, begin, row, seen, period, SIZE, N
        )
        there = slot < SIZE + period
        rating = tl.load(ratings + begin + place, there, 0).to(tl.float64)
        user, bias = adapted(
            items, ratings, position, begin, row, vectors, intercept, prior, dials,
            SIZE, STEPS, GRAM, PULL, DIM, K, D,
        )  # fmt: skip
        rows = tl.load(vectors + item[:, None] * D + entry[None, :], there[:, None], 0)
        output = tl.load(intercept + item, there, 0) + tl.sum(rows * user[None, :], 1)
        error = output + tl.load(dials) * bias - rating
        remember(
            error * error, place, met, begin, row, first, seen, period, hold, end, cold,
            position, repeats, kept, kept_repeats, kept_scores, scores, SIZE, N,
        )  # fmt: skip


@triton.jit
def _solved(matrix, target, size, N: tl.constexpr):
    """As `influence.eliminate`, for the first `size` rows; what is left out is 0."""
    place = tl.arange(0, N)
    down, across = place[:, None], place[None, :]
    for pivot in range(size):
        row = tl.sum(tl.where(down == pivot, matrix, 0.0), 0)
        column = tl.sum(tl.where(across == pivot, matrix, 0.0), 1)
        head = tl.sum(tl.where(place == pivot, row, 0.0), 0)
        row = row / head
        aim = tl.sum(tl.where(place == pivot, target, 0.0), 0) / head
        matrix = tl.where(down == pivot, row[None, :], matrix - column[:, None] * row[None, :])
        target = tl.where(place == pivot, aim, target - column * aim)
    return target


@triton.jit(do_not_specialize=["users", "runs", "count"])
def influence_walk(
    start, length, warmup, base, due, refreshes, items, ratings,
    position, repeats, kept, kept_repeats, kept_scores, scores,
    vectors, intercept, prior, dials, damping, users, runs, count,
    SIZE: tl.constexpr, STEPS: tl.constexpr, PULL: tl.constexpr, DIM: tl.constexpr,
    N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """From the empty set, add the candidate that would lower the loss of all most; refit; again."""
    run = (tl.program_id(0) % runs).to(tl.int64)
    row = run * users + tl.program_id(0) // runs
    begin, first = tl.load(start + row), tl.load(base + row)
    end, cold = tl.load(length + row), tl.load(warmup + row)
    slot, entry = tl.arange(0, N), tl.arange(0, D)
    vectors += run * count * D
    intercept += run * count
    prior += run * (DIM + 1)
    dials += run * (3 + SIZE)
    loading, pull, ridge = tl.load(dials), tl.load(dials + 1), tl.load(damping)
    begun, begun_bias = tl.load(prior + entry, entry < DIM, 0), tl.load(prior + DIM)
    for turn in range(tl.load(due + row)):
        seen, period = tl.load(refreshes + 3 * turn), tl.load(refreshes + 3 * turn + 1)
        hold = tl.load(refreshes + 3 * turn + 2)
        place, item, met, _twins = candidates(
            items, position, repeats, begin, row, seen, period, SIZE, N
        )
        there = slot < SIZE + period
        rating = tl.load(ratings + begin + place, there, 0).to(tl.float64)
        rows = tl.load(vectors + item[:, None] * D + entry[None, :], there[:, None], 0)
        own = tl.load(intercept + item, there, 0)
        at_first = own + tl.sum(rows * begun[None, :], 1) + loading * begun_bias
        both = there[:, None] & there[None, :]
        gram = tl.where(both, loading * loading, 0.0)
        for unit in range(DIM):
            left = tl.load(vectors + item[:, None] * D + unit, there[:, None], 0)
            right = tl.load(vectors + item[None, :] * D + unit, there[None, :], 0)
            gram = tl.fma(left, right, gram)
        near = quantize(gram, STATE)
        diagonal = both & (slot[:, None] == slot[None, :])
        system = 2 * gram + tl.where(diagonal, ridge, 0.0)
        chosen = tl.zeros((N,), tl.float64)
        score = tl.zeros((N,), tl.float64)
        for added in range(SIZE):
            rate = tl.load(dials + 2 + added)
            share = tl.zeros((N,), tl.float64)
            guess = at_first
            for _ in range(STEPS):
                fall = 2 * (guess - rating) * chosen
                if PULL:
                    fall = fall + pull * share
                share = quantize(share - rate * fall, STATE)
                guess = at_first + tl.sum(near * share[None, :], 1)
            user = quantize(begun + tl.sum(rows * share[:, None], 0), STATE)
            bias = quantize(begun_bias + loading * tl.sum(share, 0), STATE)
            output = own + tl.sum(rows * user[None, :], 1) + loading * bias
            slope = tl.where(there, 2 * (output - rating), 0.0)
            solved = _solved(system, slope, SIZE + period, N)
            gain = slope * tl.sum(gram * solved[None, :], 1)
            free = there & (chosen == 0)
            quantized = tl.where(
                gain == gain, quantize(gain, SCORE), float("inf")
            )  # no numbers first
            quantized = tl.where(free, quantized, -float("inf"))
            best = tl.max(tl.where(free & (quantized == tl.max(quantized, 0)), slot, -1), 0)
            chosen = tl.where(slot == best, 1.0, chosen)
            score = score + chosen  # the earlier the higher
        remember(
            score, place, met, begin, row, first, seen, period, hold, end, cold,
            position, repeats, kept, kept_repeats, kept_scores, scores, SIZE, N,
        )  # fmt: skip
