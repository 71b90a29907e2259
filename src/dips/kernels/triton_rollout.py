"""Roll users out in Triton: one program per user and run; importing this needs triton.

A program goes from refresh to refresh: join, score, choose, record. Shapes are powers of two: N
candidates, K slots of the sketch, D numbers of an item vector, H hidden units. Sums are over
numbers on the fixed-point grid, so their order does not matter. Fused multiply-add is used by name
(`tl.fma`) where it is exact, and must be off (`enable_fp_fusion`) elsewhere. Features, their order
and constants come from `layout`.

Parameters of `roll_out_*` are pointers in this order; their shapes stand in `layout`:

1. `start` to `times`: the fields of `RolloutInputs`, without those that a policy does not read.
2. `position` to `scores`: the fields of `RolloutState`. Only these are written. `recorded` is its
   field `signal`. None is not recorded.
3. Fields of `SetNetworkLayers` or `PaperNetworkLayers`, last axes padded to powers of two. Those of
   the set network stand in the order in which `triton_launch` names them. Rules: `age_table`.
4. Tables of the model that computes the signal; `scratch`, a buffer; then numbers.

Time of the reference path / time of Triton on an H200, 2 stacked runs of 300 users, K = 4: set
network 45, with predicted scores 29, paper's network 24, `hardest` 25. Other rules: not measured.
"""

# mypy: disable-error-code="import, untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

import os

import triton
import triton.language as tl
from triton.language.extra import libdevice

from dips.kernels import layout
from dips.numerics import hashing
from dips.numerics.fixed_point import SCORE_BITS, STATE_BITS, STATE_LIMIT

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")
"""Whether programs run in Triton's interpreter, which lacks the functions of libdevice."""
STATE, SCORE = tl.constexpr(2.0**STATE_BITS), tl.constexpr(2.0**SCORE_BITS)
LIMIT = tl.constexpr(STATE_LIMIT)
SCORE_LIMIT = tl.constexpr(layout.SCORE_LIMIT)
WHOLE = tl.constexpr(2.0**52)
"""All float64 numbers from here on are whole."""
LOG_TIME_SCALE = tl.constexpr(layout.LOG_TIME_SCALE)
FEATURES = tl.constexpr(len(layout.FEATURES))
RATING = tl.constexpr(layout.RATING)
SIGNAL = tl.constexpr(layout.SIGNAL)
LOG_AGE = tl.constexpr(layout.LOG_AGE)
RANK = tl.constexpr(layout.RANK)
LOG_ELAPSED = tl.constexpr(layout.LOG_ELAPSED)
LOG_REPEATS = tl.constexpr(layout.LOG_REPEATS)
NEWER_DUPLICATES = tl.constexpr(layout.NEWER_DUPLICATES)
LOG_SIGNAL = tl.constexpr(layout.LOG_SIGNAL)
AGE = tl.constexpr(layout.AGE)
SIGNAL_SCALE = tl.constexpr(layout.SIGNAL_SCALE)
AGE_LIMIT = tl.constexpr(layout.AGE_LIMIT)
AGE_SCALE = tl.constexpr(layout.AGE_SCALE)
HARDEST = tl.constexpr(layout.HARDEST)
LAST_TOP = tl.constexpr(layout.LAST_TOP)
LAST = tl.constexpr(layout.LAST)
RESERVOIR = tl.constexpr(layout.RESERVOIR)
MIX = tl.constexpr(layout.MIX)
LAST_DISTINCT = tl.constexpr(layout.LAST_DISTINCT)
NEWEST_BONUS = tl.constexpr(layout.NEWEST_BONUS)
INCREMENT = tl.constexpr(hashing.INCREMENT)
MULTIPLIER_1 = tl.constexpr(hashing.MULTIPLIER_1)
MULTIPLIER_2 = tl.constexpr(hashing.MULTIPLIER_2)
UNIT = tl.constexpr(hashing.UNIT)


@triton.jit
def quantize(value, SCALE: tl.constexpr):
    """Return the nearest multiple of 1 / SCALE, halves to even: `fixed_point.quantize`."""
    scaled = value * SCALE
    size = tl.abs(scaled)
    near = tl.where(size < WHOLE, (size + WHOLE) - WHOLE, size)
    return tl.where(scaled < 0, -near, near) * (1.0 / SCALE)


@triton.jit
def to_state(value):
    """Return a network state on the fixed-point grid: `fixed_point.quantize_clamped`."""
    scaled = tl.minimum(tl.maximum(value, -LIMIT), LIMIT) * STATE
    return ((scaled + 1.5 * WHOLE) - 1.5 * WHOLE) * (1.0 / STATE)


@triton.jit
def _log1p(value):
    """Return log(1 + a whole number)."""
    if INTERPRETED:
        return tl.log(value + 1.0)
    else:
        return libdevice.log1p(value)


@triton.jit
def join(items, position, repeats, begin, row, seen, period, SIZE: tl.constexpr, N: tl.constexpr):
    """Return positions, items, repeat counts and newer duplicates of all candidates [N]."""
    slot = tl.arange(0, N)
    old, there = slot < SIZE, slot < SIZE + period
    place = tl.load(position + row * SIZE + slot, old, 0)
    place = tl.where(old, place, seen - period - SIZE + slot)
    item = tl.load(items + begin + place, there, -1)
    count = tl.load(repeats + row * SIZE + slot, old, 0).to(tl.int32)
    left, right = slot[:, None], slot[None, :]
    same = (item[:, None] == item[None, :]) & (right < SIZE + period)
    before = tl.max(tl.where(same & (right < SIZE), count[None, :], 0), 1)
    since = tl.sum((same & (right >= SIZE) & (right <= left)).to(tl.int32), 1)
    duplicates = tl.sum((same & (right > left)).to(tl.int32), 1)
    return place, item, tl.where(old, count, before + since), duplicates


@triton.jit
def choose_and_record(
    score, place, count, begin, row, base, seen, period, following, length, warmup,
    position, repeats, events, event_repeats, event_scores, scores,
    SIZE: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Keep the SIZE highest scores, the newer of equals; record them for the predictions after.

    `begin` is the user's first event; prediction t is recorded in row base + t.
    """
    slot = tl.arange(0, N)
    there = slot < SIZE + period
    quantized = tl.minimum(tl.maximum(quantize(score, SCORE), -SCORE_LIMIT), SCORE_LIMIT)
    quantized = tl.where(score == score, quantized, 2 * SCORE_LIMIT)  # NaN first, as torch sorts
    left, right = slot[:, None], slot[None, :]
    mine, other = quantized[:, None], quantized[None, :]
    above = (other > mine) | ((other == mine) & (right > left))
    rank = tl.sum((above & (right < SIZE + period)).to(tl.int32), 1)
    stays = there & (rank < SIZE)
    to = tl.cumsum(stays.to(tl.int32), 0) - 1
    tl.store(position + row * SIZE + to, place, stays)
    tl.store(repeats + row * SIZE + to, count, stays)
    if scores is not None:
        tl.store(scores + row * SIZE + to, score, stays)
    for step in range(seen, seen + following):
        counts = there & (rank < tl.where((step < length) & (step >= warmup), SIZE, 0))
        line = (base + step) * SIZE + to
        tl.store(events + line, begin + place, counts)
        tl.store(event_repeats + line, count, counts)
        if event_scores is not None:
            tl.store(event_scores + line, score, counts)
    tl.debug_barrier()  # the next refresh reads what this one wrote


@triton.jit
def standardise(rating, scale):
    """Return ratings in the unit of scores; `scale` [2]: center and spread of ratings."""
    return quantize((rating - tl.load(scale)) / tl.load(scale + 1), STATE)


@triton.jit
def adapt(
    items, ratings, position, begin, row, vectors, intercept, prior, adapt_constants,
    SIZE: tl.constexpr, STEPS: tl.constexpr, BY_COEFFICIENTS: tl.constexpr,
    PENALTY: tl.constexpr, DIM: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Return the user vector [D] and bias adapted to the sketch: `descent.descend_linear`.

    `adapt_constants` [5]: loading of the user bias, inner learning rate of a full sketch, twice the
    prior penalty, center and spread of ratings.
    """
    slot, unit = tl.arange(0, K), tl.arange(0, D)
    there = slot < SIZE
    event = begin + tl.load(position + row * SIZE + slot, there, 0)
    item = tl.load(items + event, there, 0)
    rating = standardise(tl.load(ratings + event, there, 0).to(tl.float64), adapt_constants + 3)
    loading, rate = tl.load(adapt_constants), tl.load(adapt_constants + 1)
    penalty = tl.load(adapt_constants + 2)
    initial, initial_bias = tl.load(prior + unit, unit < DIM, 0), tl.load(prior + DIM)
    rows = tl.load(vectors + item[:, None] * D + unit[None, :], there[:, None], 0)
    own = tl.load(intercept + item, there, 0)
    initial_score = own + tl.sum(rows * initial[None, :], 1) + loading * initial_bias
    score, user, bias = initial_score, initial, initial_bias
    if BY_COEFFICIENTS:  # fewer entries than dimensions: descend on their coefficients
        gram = tl.zeros((K, K), tl.float64) + loading * loading
        for place in range(DIM):
            left = tl.load(vectors + item[:, None] * D + place, there[:, None], 0)
            right = tl.load(vectors + item[None, :] * D + place, there[None, :], 0)
            gram = tl.fma(left, right, gram)
        gram = quantize(gram, STATE)
        coefficient = tl.zeros((K,), tl.float64)
        for _ in range(STEPS):
            gradient = 2 * (score - rating)
            if PENALTY:
                gradient = gradient + penalty * coefficient
            coefficient = tl.where(there, quantize(coefficient - rate * gradient, STATE), 0.0)
            score = initial_score + tl.sum(gram * coefficient[None, :], 1)
        user = quantize(initial + tl.sum(rows * coefficient[:, None], 0), STATE)
        bias = quantize(initial_bias + loading * tl.sum(coefficient, 0), STATE)
    else:
        for _ in range(STEPS):
            error = tl.where(there, 2 * (score - rating), 0.0)
            gradient = tl.sum(rows * error[:, None], 0)
            bias_gradient = loading * tl.sum(error, 0)
            if PENALTY:
                gradient = gradient + penalty * (user - initial)
                bias_gradient = bias_gradient + penalty * (bias - initial_bias)
            user, bias = (
                quantize(user - rate * gradient, STATE),
                quantize(bias - rate * bias_gradient, STATE),
            )
            score = own + tl.sum(rows * user[None, :], 1) + loading * bias
    return user, bias


@triton.jit
def adapt_linearised(
    items, position, begin, row, seen, directions, curvature, age_weight, linearised_constants,
    ages,
    SIZE: tl.constexpr, STEPS: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Return the change [D] of the user vector: `predicted_score.predicted_score`.

    `linearised_constants` [2]: inner learning rate of a full sketch, bound of the curvature.
    """
    slot, unit = tl.arange(0, K), tl.arange(0, D)
    there = slot < SIZE
    place = tl.load(position + row * SIZE + slot, there, 0)
    item = tl.load(items + begin + place, there, 0)
    weight = tl.load(age_weight + tl.minimum(seen - 1 - place, ages - 1), there, 0)
    rows = tl.load(directions + item[:, None] * D + unit[None, :], there[:, None], 0)
    direction, total = tl.sum(rows * weight[:, None], 0), tl.sum(weight, 0)
    rate = tl.load(linearised_constants)
    step_size = rate / tl.maximum(rate * total * tl.load(linearised_constants + 1), 1.0)
    matrix = tl.load(curvature + unit[:, None] * D + unit[None, :])
    change = quantize(step_size * direction, STATE)
    for _ in range(STEPS - 1):
        product = tl.sum(matrix * change[:, None], 0)
        change = quantize(change + step_size * (direction - total * product), STATE)
    return change


@triton.jit
def predict(
    items, ratings, position, begin, row, run, seen, place, item, there,
    vectors, intercept, prior, adapt_constants,
    directions, curvature, age_weight, linearised_constants, count, ages,
    SIZE: tl.constexpr, STEPS: tl.constexpr, BY_COEFFICIENTS: tl.constexpr,
    PENALTY: tl.constexpr, DIM: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Return what the model of a run predicts for the candidates [N], adapted to the sketch.

    It is a predicted score with `directions` (see `adapt_linearised`), else the prediction minus
    the rating, standardised (see `adapt`).
    """
    entry = tl.arange(0, D)
    vectors += run * count * D
    if directions is not None:
        user = adapt_linearised(
            items, position, begin, row, seen, directions + run * count * D,
            curvature + run * D * D, age_weight + run * ages, linearised_constants + run * 2, ages,
            SIZE, STEPS, K, D,
        )  # fmt: skip
    else:
        adapt_constants += run * 5
        user, user_bias = adapt(
            items, ratings, position, begin, row, vectors, intercept + run * count,
            prior + run * (DIM + 1), adapt_constants,
            SIZE, STEPS, BY_COEFFICIENTS, PENALTY, DIM, K, D,
        )  # fmt: skip
    rows = tl.load(vectors + item[:, None] * D + entry[None, :], there[:, None], 0)
    score = tl.load(intercept + run * count + item, there, 0) + tl.sum(rows * user[None, :], 1)
    if directions is None:
        rating = tl.load(ratings + begin + place, there, 0).to(tl.float64)
        target = standardise(rating, adapt_constants + 3)
        score = score + tl.load(adapt_constants) * user_bias - target
    return score


@triton.jit
def record_signal(
    signal, recorded, base, seen, period, length, warmup, width,
    SIZE: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Record the signals [N] for the first prediction after a refresh, if it is recorded."""
    if recorded is not None:
        slot = tl.arange(0, N)
        is_recorded = (seen < length) & (seen >= warmup)
        recorded_slots = tl.where(is_recorded, SIZE + period, 0)
        tl.store(recorded + (base + seen) * width + slot, signal, slot < recorded_slots)


@triton.jit
def uniform(key, part):
    """Return random numbers in [0, 1) from a key and integers: `hashing.uniform`."""
    value = (key ^ (part * MULTIPLIER_1)) + INCREMENT
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * MULTIPLIER_1
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * MULTIPLIER_2
    value = value ^ ((value >> 31) & ((1 << 33) - 1))
    return ((value >> 11) & ((1 << 53) - 1)).to(tl.float64) * UNIT


@triton.jit
def add_feature(score, state, feature, weight, direct, INDEX: tl.constexpr, H: tl.constexpr):
    """Add one feature [N] of the set network to the scores [N] and the first layer [N, H]."""
    unit = tl.arange(0, H)[None, :]
    score += feature * tl.load(direct + INDEX)
    state = tl.fma(feature[:, None], tl.load(weight + INDEX * H + unit), state)
    return score, state


@triton.jit(do_not_specialize=["users", "runs", "count", "width", "ages"])
def roll_out_set_network(
    start, length, warmup, first_row, refresh_count, refreshes, items, ratings, times,
    position, repeats, events, event_repeats, recorded, event_scores, scores,
    scale, table, table_direct, feature_weight, feature_direct, candidate_weight, context_weight,
    bias, output, logs, ranks,
    vectors, intercept, prior, adapt_constants,
    directions, curvature, age_weight, linearised_constants, scratch,
    users, runs, count, width, ages,
    SIZE: tl.constexpr, STEPS: tl.constexpr, BY_COEFFICIENTS: tl.constexpr,
    PENALTY: tl.constexpr, DIM: tl.constexpr, HIDDEN: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Roll out one user under a set network.

    The signal is a residual with a `prior`, a predicted score with `directions` (see `predict`),
    else 0.
    """
    run = (tl.program_id(0) % runs).to(tl.int64)
    row = run * users + tl.program_id(0) // runs  # the longest histories of all runs come first
    begin, base = tl.load(start + row), tl.load(first_row + row)
    user_length, user_warmup = tl.load(length + row), tl.load(warmup + row)
    center, spread = tl.load(scale + run * 3), tl.load(scale + run * 3 + 1)
    slope = tl.load(scale + run * 3 + 2)
    slot, unit = tl.arange(0, N), tl.arange(0, H)
    states = scratch + tl.program_id(0).to(tl.int64) * (N + 1) * H  # [N, H], then their mean [H]
    feature_weight += run * FEATURES * H
    feature_direct += run * FEATURES
    candidate_weight += run * HIDDEN * H
    context_weight += run * HIDDEN * H
    down, across = slot[:, None], unit[None, :]
    shift = tl.load(bias + run * H + across)
    outward = tl.load(output + run * H + across)
    for refresh in range(tl.load(refresh_count + row)):
        seen, period = tl.load(refreshes + 3 * refresh), tl.load(refreshes + 3 * refresh + 1)
        following = tl.load(refreshes + 3 * refresh + 2)
        place, item, repeated, duplicates = join(
            items, position, repeats, begin, row, seen, period, SIZE, N
        )
        there = slot < SIZE + period
        rating = tl.load(ratings + begin + place, there, 0).to(tl.float64)
        time = tl.load(times + begin + place, there, -(1 << 62))
        total = (SIZE + period).to(tl.float64)
        newer = (SIZE + period - 1 - slot).to(tl.float64)
        signal = tl.zeros((N,), tl.float64)
        if vectors is not None:
            signal = predict(
                items, ratings, position, begin, row, run, seen, place, item, there,
                vectors, intercept, prior, adapt_constants,
                directions, curvature, age_weight, linearised_constants, count, ages,
                SIZE, STEPS, BY_COEFFICIENTS, PENALTY, DIM, K, D,
            )  # fmt: skip
            if directions is None:
                signal = signal * -2.0
            record_signal(
                signal, recorded, base, seen, period, user_length, user_warmup, width, SIZE, N
            )
        score = tl.load(table_direct + run * count + item, there, 0) - slope * newer
        line = (run * count + item)[:, None] * H + unit[None, :]
        state = tl.load(table + line, there[:, None], 0)
        feature = to_state((rating - center) / spread)
        score, state = add_feature(score, state, feature, feature_weight, feature_direct, RATING, H)
        feature = to_state(signal)
        score, state = add_feature(score, state, feature, feature_weight, feature_direct, SIGNAL, H)
        feature = tl.load(logs + seen - 1 - place, there, 0)
        score, state = add_feature(
            score, state, feature, feature_weight, feature_direct, LOG_AGE, H
        )
        feature = tl.load(ranks + period * N + slot)
        score, state = add_feature(score, state, feature, feature_weight, feature_direct, RANK, H)
        elapsed = tl.where(there, tl.maximum(tl.max(time, 0) - time, 0), 0)
        feature = to_state(_log1p(elapsed.to(tl.float64)) / LOG_TIME_SCALE)
        score, state = add_feature(
            score, state, feature, feature_weight, feature_direct, LOG_ELAPSED, H
        )
        feature = tl.load(logs + repeated, there, 0)
        score, state = add_feature(
            score, state, feature, feature_weight, feature_direct, LOG_REPEATS, H
        )
        feature = duplicates.to(tl.float64)
        score, state = add_feature(
            score, state, feature, feature_weight, feature_direct, NEWER_DUPLICATES, H
        )
        feature = to_state(_log1p(tl.abs(signal) / SIGNAL_SCALE))
        score, state = add_feature(
            score, state, feature, feature_weight, feature_direct, LOG_SIGNAL, H
        )
        feature = tl.minimum(seen - 1 - place, AGE_LIMIT).to(tl.float64) / AGE_SCALE
        score, state = add_feature(score, state, feature, feature_weight, feature_direct, AGE, H)
        state = tl.where(there[:, None], to_state(tl.maximum(state, 0.0)), 0.0)
        tl.store(states + down * H + across, state)
        tl.store(states + N * H + unit, to_state(tl.sum(state, 0) / total))
        tl.debug_barrier()  # below every thread reads what others wrote
        second = tl.zeros((N, H), tl.float64)
        context = shift
        for k in range(HIDDEN):
            one, mean = tl.load(states + down * H + k), tl.load(states + N * H + k)
            second = tl.fma(one, tl.load(candidate_weight + k * H + across), second)
            context = tl.fma(mean, tl.load(context_weight + k * H + across), context)
        second = to_state(tl.maximum(second + context, 0.0))
        score += tl.sum(second * outward, 1)
        choose_and_record(
            score, place, repeated, begin, row, base, seen, period, following,
            user_length, user_warmup, position, repeats, events, event_repeats, event_scores,
            scores, SIZE, N,
        )  # fmt: skip


@triton.jit(do_not_specialize=["users", "runs", "count"])
def roll_out_paper_network(
    start, length, warmup, first_row, refresh_count, refreshes, items, ratings,
    position, repeats, events, event_repeats, event_scores, scores,
    input_weight, input_bias, hidden_weight, hidden_bias, output_weight, output_bias, spread,
    scratch, users, runs, count,
    SIZE: tl.constexpr, HIDDEN: tl.constexpr, N: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Roll out one user under the paper's network, from ratings to a score for each item."""
    run = (tl.program_id(0) % runs).to(tl.int64)
    row = run * users + tl.program_id(0) // runs
    begin, base = tl.load(start + row), tl.load(first_row + row)
    user_length, user_warmup = tl.load(length + row), tl.load(warmup + row)
    slot, unit = tl.arange(0, N), tl.arange(0, H)
    states = scratch + tl.program_id(0).to(tl.int64) * H
    hidden_weight += run * HIDDEN * H
    inward = tl.load(input_bias + run * H + unit)
    shift = tl.load(hidden_bias + run * H + unit)
    for refresh in range(tl.load(refresh_count + row)):
        seen, period = tl.load(refreshes + 3 * refresh), tl.load(refreshes + 3 * refresh + 1)
        following = tl.load(refreshes + 3 * refresh + 2)
        place, item, repeated, _ = join(items, position, repeats, begin, row, seen, period, SIZE, N)
        there = slot < SIZE + period
        rating = tl.load(ratings + begin + place, there, 0).to(tl.float64)
        rating = to_state(rating / tl.load(spread + run))
        line = (run * count + item)[:, None] * H + unit[None, :]
        rows = tl.load(input_weight + line, there[:, None], 0)
        state = to_state(tl.maximum(tl.sum(rows * rating[:, None], 0) + inward, 0.0))
        tl.store(states + unit, state)
        tl.debug_barrier()  # below every thread reads what others wrote
        second = shift
        for k in range(HIDDEN):
            second = tl.fma(tl.load(hidden_weight + k * H + unit), tl.load(states + k), second)
        second = to_state(tl.maximum(second, 0.0))
        rows = tl.load(output_weight + line, there[:, None], 0)
        score = tl.load(output_bias + run * count + item, there, 0)
        score += tl.sum(rows * second[None, :], 1)
        choose_and_record(
            score, place, repeated, begin, row, base, seen, period, following,
            user_length, user_warmup, position, repeats, events, event_repeats, event_scores,
            scores, SIZE, N,
        )  # fmt: skip


@triton.jit(do_not_specialize=["users", "runs", "count", "width", "ages", "newest", "table_ages"])
def roll_out_rule(
    start, length, warmup, first_row, refresh_count, refreshes, items, ratings, keys,
    position, repeats, events, event_repeats, recorded, event_scores, scores, age_table,
    vectors, intercept, prior, adapt_constants,
    directions, curvature, age_weight, linearised_constants,
    users, runs, count, width, ages, newest, table_ages,
    CODE: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr, BY_COEFFICIENTS: tl.constexpr,
    PENALTY: tl.constexpr, DIM: tl.constexpr, N: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Roll out one user under a rule without parameters.

    `age_table` [table_ages] has the decay factors of `hardest:H` and the scores of the newest M of
    `mix:M`, by age; the last is also for older ages.
    """
    run = (tl.program_id(0) % runs).to(tl.int64)
    row = run * users + tl.program_id(0) // runs  # the longest histories of all runs come first
    begin, base = tl.load(start + row), tl.load(first_row + row)
    user_length, user_warmup = tl.load(length + row), tl.load(warmup + row)
    slot = tl.arange(0, N)
    for refresh in range(tl.load(refresh_count + row)):
        seen, period = tl.load(refreshes + 3 * refresh), tl.load(refreshes + 3 * refresh + 1)
        following = tl.load(refreshes + 3 * refresh + 2)
        place, item, repeated, duplicates = join(
            items, position, repeats, begin, row, seen, period, SIZE, N
        )
        there = slot < SIZE + period
        age = seen - 1 - place
        real_age = age.to(tl.float64)
        signal = tl.zeros((N,), tl.float64)
        if vectors is not None:
            signal = predict(
                items, ratings, position, begin, row, run, seen, place, item, there,
                vectors, intercept, prior, adapt_constants,
                directions, curvature, age_weight, linearised_constants, count, ages,
                SIZE, STEPS, BY_COEFFICIENTS, PENALTY, DIM, K, D,
            )  # fmt: skip
            record_signal(
                signal, recorded, base, seen, period, user_length, user_warmup, width, SIZE, N
            )
        by_age = tl.zeros((N,), tl.float64) + 1.0
        if age_table is not None:
            by_age = tl.load(age_table + tl.minimum(age, table_ages - 1), there, 0).to(tl.float64)
        if CODE == HARDEST:
            score = signal * signal * by_age
        elif CODE == LAST_TOP:
            score = tl.where(age < newest, NEWEST_BONUS - real_age, signal)
        elif CODE == LAST:
            score = -1.0 * real_age
        elif CODE == RESERVOIR:
            score = uniform(tl.load(keys + row), place)
        elif CODE == MIX:
            score = tl.where(age < newest, by_age, uniform(tl.load(keys + row), place))
        else:
            outdated, total = tl.minimum(duplicates, 1).to(tl.float64), seen.to(tl.float64)
            if CODE == LAST_DISTINCT:
                score = -1.0 * real_age - outdated * total
            else:  # FREQUENT
                recency = 1.0 - real_age / (total + 1.0)
                score = repeated.to(tl.float64) + recency / 2.0 - outdated * (total + 1.0)
        choose_and_record(
            score, place, repeated, begin, row, base, seen, period, following,
            user_length, user_warmup, position, repeats, events, event_repeats, event_scores,
            scores, SIZE, N,
        )  # fmt: skip


@triton.jit
def _solve(matrix, target, size, N: tl.constexpr):
    """Return the solution of the first `size` equations, 0 elsewhere: `influence.solve_dense`."""
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
def roll_out_influence(
    start, length, warmup, first_row, refresh_count, refreshes, items, ratings,
    position, repeats, events, event_repeats, event_scores, scores,
    vectors, intercept, prior, model_constants, damping, users, runs, count,
    SIZE: tl.constexpr, STEPS: tl.constexpr, PENALTY: tl.constexpr, DIM: tl.constexpr,
    N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Roll out one user under `influence`: the greedy coreset, refitted after each addition.

    `model_constants` [5 + SIZE] is `SquaredErrorModel.constants`: loading of the user bias, twice
    the prior penalty, center and spread of ratings, inner learning rates for 0, 1, ... entries.
    """
    run = (tl.program_id(0) % runs).to(tl.int64)
    row = run * users + tl.program_id(0) // runs
    begin, base = tl.load(start + row), tl.load(first_row + row)
    user_length, user_warmup = tl.load(length + row), tl.load(warmup + row)
    slot, entry = tl.arange(0, N), tl.arange(0, D)
    vectors += run * count * D
    intercept += run * count
    prior += run * (DIM + 1)
    model_constants += run * (5 + SIZE)
    loading, penalty = tl.load(model_constants), tl.load(model_constants + 1)
    ridge = tl.load(damping)
    initial, initial_bias = tl.load(prior + entry, entry < DIM, 0), tl.load(prior + DIM)
    for refresh in range(tl.load(refresh_count + row)):
        seen, period = tl.load(refreshes + 3 * refresh), tl.load(refreshes + 3 * refresh + 1)
        following = tl.load(refreshes + 3 * refresh + 2)
        place, item, repeated, _duplicates = join(
            items, position, repeats, begin, row, seen, period, SIZE, N
        )
        there = slot < SIZE + period
        rating = tl.load(ratings + begin + place, there, 0).to(tl.float64)
        rating = standardise(rating, model_constants + 2)
        rows = tl.load(vectors + item[:, None] * D + entry[None, :], there[:, None], 0)
        own = tl.load(intercept + item, there, 0)
        initial_score = own + tl.sum(rows * initial[None, :], 1) + loading * initial_bias
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
            rate = tl.load(model_constants + 4 + added)
            coefficient = tl.zeros((N,), tl.float64)
            guess = initial_score
            for _ in range(STEPS):
                gradient = 2 * (guess - rating) * chosen
                if PENALTY:
                    gradient = gradient + penalty * coefficient
                coefficient = quantize(coefficient - rate * gradient, STATE)
                guess = initial_score + tl.sum(near * coefficient[None, :], 1)
            user = quantize(initial + tl.sum(rows * coefficient[:, None], 0), STATE)
            bias = quantize(initial_bias + loading * tl.sum(coefficient, 0), STATE)
            output = own + tl.sum(rows * user[None, :], 1) + loading * bias
            slope = tl.where(there, 2 * (output - rating), 0.0)
            solved = _solve(system, slope, SIZE + period, N)
            gain = slope * tl.sum(gram * solved[None, :], 1)
            free = there & (chosen == 0)
            quantized = tl.where(gain == gain, quantize(gain, SCORE), float("inf"))  # NaN first
            quantized = tl.where(free, quantized, -float("inf"))
            best = tl.max(tl.where(free & (quantized == tl.max(quantized, 0)), slot, -1), 0)
            chosen = tl.where(slot == best, 1.0, chosen)
            score = score + chosen  # the earlier the higher
        choose_and_record(
            score, place, repeated, begin, row, base, seen, period, following,
            user_length, user_warmup, position, repeats, events, event_repeats, event_scores,
            scores, SIZE, N,
        )  # fmt: skip
