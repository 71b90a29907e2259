"""Refresh sketches in numba loops: join, score, choose, write; importing this needs numba.

`refresh` is the only state transition. `roll_out` calls it for users and refreshes, `observe` for
arrivals. Both leave the same bits as `sketch.update` with the policies in torch, which are the
reference. A scorer is an integer code: numba cannot cache programs that take functions.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dips.kernels.layout import (
    AGE,
    AGE_LIMIT,
    AGE_SCALE,
    FEATURES,
    HARDEST,
    INFLUENCE,
    LAST,
    LAST_DISTINCT,
    LAST_TOP,
    LOG_AGE,
    LOG_ELAPSED,
    LOG_REPEATS,
    LOG_SIGNAL,
    LOG_TIME_SCALE,
    LOSS,
    MIX,
    NEWER_DUPLICATES,
    NEWEST_BONUS,
    NO_SIGNAL,
    PAPER_NETWORK,
    RANK,
    RATING,
    RESERVOIR,
    RESIDUAL,
    SCORE_LIMIT,
    SET_NETWORK,
    SIGNAL,
    SIGNAL_SCALE,
)
from dips.kernels.numba_fixed_point import (
    STATE,
    add,
    copy,
    dot,
    inlined,
    inner_loop,
    kernel,
    large_loop,
    multiply,
    quantize,
    to_state,
)
from dips.kernels.numba_inner_loop import (
    InnerWorkspace,
    adapt,
    adapt_linearised,
    inner_workspace,
    predict,
    predict_linearised,
    standardise,
)
from dips.numerics.fixed_point import SCORE_BITS
from dips.numerics.hashing import INCREMENT, MULTIPLIER_1, MULTIPLIER_2, UNIT

SCORE = 2.0**SCORE_BITS
WIDTH = len(FEATURES)
LONG_AGO = -(1 << 62)


class Workspace(NamedTuple):
    """Buffers for the candidates of one refresh."""

    position: np.ndarray  # [candidates]
    item: np.ndarray  # [candidates] item codes
    row: np.ndarray  # [candidates] rows in the item tables; -1: unknown item
    repeats: np.ndarray  # [candidates]
    time: np.ndarray  # [candidates]
    rating: np.ndarray  # [candidates]
    weight: np.ndarray  # [candidates] of each candidate in the mean of all
    newer: np.ndarray  # [candidates] total weight of newer candidates
    signal: np.ndarray  # [candidates] residual, loss or predicted score
    features: np.ndarray  # [candidates, features] on the fixed-point grid
    first: np.ndarray  # [candidates, hidden] first layer
    second: np.ndarray  # [candidates, hidden] second layer
    mean: np.ndarray  # [hidden] mean of the first layer
    score: np.ndarray  # [candidates]
    quantized: np.ndarray  # [candidates] scores as they are compared
    stays: np.ndarray  # [candidates] bool
    slot: np.ndarray  # [candidates] candidate in each slot of the new sketch
    vector: np.ndarray  # [dim] item vector on the fixed-point grid
    nonzero: np.ndarray  # [most units] indices of nonzero units
    chosen: np.ndarray  # [candidates] influence: 1 where chosen
    slope: np.ndarray  # [candidates] influence: derivatives of the losses
    solved: np.ndarray  # [candidates] influence: solution of the linear system
    near: np.ndarray  # [candidates, candidates] influence: quantized Gram matrix
    system: np.ndarray  # [candidates, candidates] influence: the linear system
    inner: InnerWorkspace


def workspace(
    width: int, hidden: int, dim: int, entries: int, user_dim: int, influences: int
) -> Workspace:
    """Return buffers for `width` candidates; matrices of `influences` candidates (or 0)."""
    whole = np.empty((5, width), np.int64)
    real = np.ones((5, width))
    units = np.empty((2, width, hidden))
    return Workspace(  # by index: an unpacked array is not known to be contiguous
        whole[0],
        whole[1],
        whole[2],
        whole[3],
        whole[4],
        real[0],
        real[1],
        real[2],
        real[3],
        np.empty((width, WIDTH)),
        units[0],
        units[1],
        np.empty(hidden),
        real[4],
        np.empty(width),
        np.empty(width, np.bool_),
        np.empty(width, np.int64),
        np.empty(dim),
        np.empty(max(hidden, WIDTH, dim), np.int64),
        np.empty(influences),
        np.empty(influences),
        np.empty(influences),
        np.empty((influences, influences)),
        np.empty((influences, influences)),
        inner_workspace(entries, user_dim),
    )


def workspace_for(scorer: Any, size: int, width: int) -> Workspace:
    """Return buffers for a scorer, sketches of `size` entries and `width` candidates."""
    hidden, dim = scorer.set_network.bias.shape[1], scorer.set_network.item_weight.shape[1]
    if scorer.code == PAPER_NETWORK:
        hidden = scorer.paper_network.input_weight.shape[2]
    user_dim = scorer.linearised_softmax.vectors.shape[2]
    if scorer.squared_error.vectors.size > 0:
        user_dim = scorer.squared_error.prior.shape[1]
    influences = width if scorer.code == INFLUENCE else 0
    entries = width if scorer.code == INFLUENCE else size
    return workspace(width, hidden, dim, entries, user_dim, influences)


# --- Loops ------------------------------------------------------------------------------------


@kernel
def roll_out(inputs, events, sketch, state, scorer, number, buffers, first, stride):
    """Refresh the sketches of every `stride`-th user from refresh to refresh."""
    rows = len(sketch.position)
    users = rows // scorer.runs
    for row in range(first, rows, stride):
        run, start = row // users, inputs.start[row]
        for turn in range(inputs.refresh_count[row]):
            seen, new = inputs.refreshes[turn, 0], inputs.refreshes[turn, 1]
            begin = start + seen - new
            refresh(
                sketch, row, events, begin, new, seen, inputs.key[row], number, scorer, run, buffers
            )
            record(inputs, sketch, state, row, seen, inputs.refreshes[turn, 2], new, buffers)


@kernel
def observe(sketch, seen, user, events, key, number, scorer, buffers):
    """Refresh the sketch of `user` [events] after each event, in their order, for one run.

    `seen` [users] counts events and is increased; `number` maps item codes to rows of the item
    tables, -1 for items that the run does not know. `key` [users] may be empty.
    """
    run, new = np.int64(0), np.int64(1)  # all functions would be compiled again for literals
    for event in range(len(user)):
        row = user[event]
        seen[row] += 1
        user_key = key[row] if len(key) > 0 else 0
        refresh(sketch, row, events, event, new, seen[row], user_key, number, scorer, run, buffers)


@kernel
def set_network_scores(inputs, layers, scores, buffers, first, stride):
    """Write the scores of a set network [rows, candidates] for every `stride`-th row."""
    rows, count = scores.shape
    users = rows // len(layers.bias)
    for row in range(first, rows, stride):
        run = row // users
        copy(buffers.position, inputs.position[row])
        copy(buffers.item, inputs.item[row])
        copy(buffers.rating, inputs.rating[row])
        copy(buffers.time, inputs.time[row])
        copy(buffers.repeats, inputs.repeats[row])
        copy(buffers.weight, inputs.weight[row])
        copy(buffers.signal, inputs.signal[row])
        for slot in range(count):
            if buffers.position[slot] < 0:
                _start_without_item(layers, run, buffers, slot)
            else:
                _start_with_vector(layers, run, inputs.embedding[row, slot], buffers, slot)
        total = _features(layers, run, inputs.seen[row], buffers, count)
        _network(layers, run, buffers, count, total)
        copy(scores[row], buffers.score)


# --- The transition ---------------------------------------------------------------------------


@inlined
def refresh(sketch, row, events, begin, new, seen, key, number, scorer, run, buffers):
    """Join `new` events from `begin` on to a sketch, score all, keep the highest, write them.

    Where all candidates fit into the sketch, all are kept and nothing is scored.
    """
    size = sketch.position.shape[1]
    kept = join(sketch, row, events, begin, new, seen, number, buffers)
    count = kept + new
    if count <= size:
        for slot in range(count):
            buffers.stays[slot] = True
    else:
        score(scorer, run, seen, key, kept, count, buffers)
        choose(buffers, count, size)
    write(sketch, row, events, begin, kept, count, buffers)


@inner_loop
def join(sketch, row, events, begin, new, seen, number, buffers):
    """Collect the candidates: the sketch, then the new events; return how many were kept."""
    kept = sketch.position.shape[1]
    while kept > 0 and sketch.position[row, kept - 1] < 0:
        kept -= 1
    for slot in range(kept):
        buffers.position[slot], buffers.item[slot] = (
            sketch.position[row, slot],
            sketch.item[row, slot],
        )
        buffers.rating[slot], buffers.time[slot] = sketch.rating[row, slot], sketch.time[row, slot]
        buffers.repeats[slot] = sketch.repeats[row, slot]
    for slot in range(kept, kept + new):
        event = begin + slot - kept
        item = events.item[event]
        buffers.position[slot], buffers.item[slot] = seen - new + slot - kept, item
        buffers.rating[slot], buffers.time[slot] = events.rating[event], events.time[event]
        before, since = 0, 1
        for other in range(kept):
            if buffers.item[other] == item:
                before = max(before, buffers.repeats[other])
        for other in range(kept, slot):
            since += buffers.item[other] == item
        buffers.repeats[slot] = before + since
    if len(number) > 0:
        for slot in range(kept + new):
            buffers.row[slot] = number[buffers.item[slot]]
    else:
        copy(buffers.row[: kept + new], buffers.item)
    return kept


@inlined
def score(scorer, run, seen, key, kept, count, buffers):
    """Write the scores of all candidates to `buffers.score`."""
    code = scorer.code
    if scorer.signal != NO_SIGNAL:
        signal = scorer.signal
        if scorer.squared_error.vectors.size > 0:
            squared_error_signals(scorer.squared_error, signal, run, kept, count, buffers)
        else:
            predicted_scores(scorer.linearised_softmax, run, seen, kept, count, buffers)
    if code == SET_NETWORK:
        _set_network(scorer, run, seen, count, buffers)
    elif code == PAPER_NETWORK:
        _paper_network(scorer.paper_network, run, count, buffers)
    elif code == INFLUENCE:
        _influence(scorer, run, seen, kept, count, buffers)
    else:
        _rules(code, scorer.newest, scorer.decay, seen, key, count, buffers)


@inner_loop
def choose(buffers, count, size):
    """Mark the `size` highest scores, the newer of equals: `selection.Greedy`."""
    for slot in range(count):
        value = min(max(quantize(buffers.score[slot], SCORE), -SCORE_LIMIT), SCORE_LIMIT)
        buffers.quantized[slot] = np.inf if np.isnan(value) else value  # NaN first, as torch sorts
    if count == size + 1:
        lowest = 0
        for slot in range(1, count):
            if buffers.quantized[slot] < buffers.quantized[lowest]:
                lowest = slot
        for slot in range(count):
            buffers.stays[slot] = slot != lowest
        return
    for slot in range(count):
        above, value = 0, buffers.quantized[slot]
        for other in range(count):
            better = buffers.quantized[other] > value
            above += better or (other > slot and buffers.quantized[other] == value)
        buffers.stays[slot] = above < size


@inner_loop
def write(sketch, row, events, begin, kept, count, buffers):
    """Write the candidates that stay to the sketch, in order; unchanged slots are skipped."""
    carried, target = sketch.side.size > 0, 0
    for slot in range(count):
        if not buffers.stays[slot]:
            continue
        buffers.slot[target] = slot
        if slot != target or slot >= kept:
            sketch.position[row, target] = buffers.position[slot]
            sketch.item[row, target] = buffers.item[slot]
            sketch.rating[row, target] = buffers.rating[slot]
            sketch.time[row, target] = buffers.time[slot]
            sketch.repeats[row, target] = buffers.repeats[slot]
            if carried and slot < kept:
                sketch.side[row, target] = sketch.side[row, slot]
            elif carried:
                sketch.side[row, target] = events.side[begin + slot - kept]
        target += 1


@inner_loop
def record(inputs, sketch, state, row, seen, following, new, buffers):
    """Record a refreshed sketch for the predictions that follow it."""
    size = sketch.position.shape[1]
    begin, first = inputs.start[row], inputs.first_row[row]
    low, high = max(seen, inputs.warmup[row]), min(seen + following, inputs.length[row])
    if state.signal.size and inputs.warmup[row] <= seen < inputs.length[row]:
        for slot in range(size + new):
            state.signal[first + seen, slot] = buffers.signal[slot]
    if state.scores.size:
        for slot in range(size):
            state.scores[row, slot] = buffers.score[buffers.slot[slot]]
    for line in range(first + low, first + high):
        for slot in range(size):
            state.events[line, slot] = begin + sketch.position[row, slot]
            state.event_repeats[line, slot] = sketch.repeats[row, slot]
        if state.event_scores.size:
            for slot in range(size):
                state.event_scores[line, slot] = buffers.score[buffers.slot[slot]]


# --- Signals ----------------------------------------------------------------------------------


@inner_loop
def squared_error_signals(model, signal, run, kept, count, buffers):
    """Write residuals, losses or predictions, from the user vector adapted to the sketch.

    Unknown items have signal 0.
    """
    user = buffers.inner.user
    adapt(model, run, buffers.row[:kept], buffers.rating, buffers.inner)
    for slot in range(count):
        item, value = buffers.row[slot], 0.0
        if item >= 0:
            value = predict(model, run, item, user)
            error = value - standardise(model, run, buffers.rating[slot])
            if signal == RESIDUAL:
                value = error * -2.0
            elif signal == LOSS:
                value = error * error
        buffers.signal[slot] = value


@inner_loop
def predicted_scores(model, run, seen, kept, count, buffers):
    """Write predicted scores, from the linearised softmax of the sketch.

    Unknown items have the lowest predicted score of the others.
    """
    user, lowest = buffers.inner.user, np.inf
    adapt_linearised(model, run, buffers.row[:kept], buffers.position, seen, buffers.inner)
    for slot in range(count):
        item, value = buffers.row[slot], 0.0
        if item >= 0:
            value = predict_linearised(model, run, item, user)
            lowest = min(lowest, value)
        buffers.signal[slot] = value
    if lowest < np.inf:
        for slot in range(count):
            if buffers.row[slot] < 0:
                buffers.signal[slot] = lowest


# --- Rules ------------------------------------------------------------------------------------


@inner_loop
def _rules(code, newest, decay, seen, key, count, buffers):
    """Score all candidates by a rule without parameters."""
    for slot in range(count):
        position = buffers.position[slot]
        age = seen - 1 - position
        if code == HARDEST:
            value = buffers.signal[slot] * _decay(decay, age)
        elif code == LAST_TOP:
            value = NEWEST_BONUS - age if age < newest else buffers.signal[slot]
        elif code == LAST:
            value = -float(age)
        elif code == RESERVOIR:
            value = uniform(key, position)
        elif code == MIX and age < newest:  # in float32, as torch divides integers
            value = float(np.float32(2.0) - np.float32(age) / np.float32(newest))
        elif code == MIX:
            value = uniform(key, position)
        else:
            outdated = 0.0
            for other in range(slot + 1, count):
                if buffers.item[other] == buffers.item[slot]:
                    outdated = 1.0
            if code == LAST_DISTINCT:
                value = -float(age) - outdated * seen
            else:  # FREQUENT
                recency = 1.0 - age / (seen + 1.0)
                value = buffers.repeats[slot] + recency / 2.0 - outdated * (seen + 1.0)
        buffers.score[slot] = value


@inner_loop
def _decay(decay, age):
    """Return the factor of a score at this age: 2 ** (-age / half-life), or 1."""
    if len(decay) == 0:
        return 1.0
    return decay[min(max(age, 0), len(decay) - 1)]


@inner_loop
def uniform(key, part):
    """Return a random number in [0, 1) from a key and an integer: `hashing.uniform`."""
    value = (key ^ (part * MULTIPLIER_1)) + INCREMENT
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * MULTIPLIER_1
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * MULTIPLIER_2
    value = value ^ ((value >> 31) & ((1 << 33) - 1))
    return ((value >> 11) & ((1 << 53) - 1)) * UNIT


# --- Networks ---------------------------------------------------------------------------------


@inner_loop
def _set_network(scorer, run, seen, count, buffers):
    """Score all candidates by the set network."""
    layers = scorer.set_network
    if scorer.signal == NO_SIGNAL:
        buffers.signal[:] = 0.0
    for slot in range(count):
        item = buffers.row[slot]
        if item < 0:
            _start_without_item(layers, run, buffers, slot)
        elif item < layers.table.shape[1]:
            copy(buffers.first[slot], layers.table[run, item])
            buffers.score[slot] = layers.table_direct[run, item]
        else:
            _start_with_vector(layers, run, layers.vectors[run, item], buffers, slot)
    total = _features(layers, run, seen, buffers, count)
    _network(layers, run, buffers, count, total)


@inner_loop
def _start_with_vector(layers, run, vector, buffers, slot):
    """Write the part of an item's vector in the first layer and in the score."""
    copy(buffers.first[slot], layers.item_bias[run])
    for place in range(len(buffers.vector)):
        buffers.vector[place] = to_state(vector[place])
    buffers.score[slot] = dot(buffers.vector, layers.item_direct[run])
    multiply(buffers.first[slot], buffers.vector, layers.item_weight[run], buffers.nonzero)


@inner_loop
def _start_without_item(layers, run, buffers, slot):
    """Write the first layer and the score of an empty slot or an unknown item."""
    copy(buffers.first[slot], layers.item_bias[run])
    buffers.score[slot] = 0.0


@inner_loop
def _features(layers, run, seen, buffers, count):
    """Write the features of all candidates on the fixed-point grid; return their total weight."""
    center, spread = layers.scale[run, 0], layers.scale[run, 1]
    newest, total = LONG_AGO, 0.0
    for slot in range(count):
        total += buffers.weight[slot]
        if buffers.position[slot] >= 0:
            newest = max(newest, buffers.time[slot])
    total = max(total, 1.0)
    for slot in range(count):
        features = buffers.features[slot]
        buffers.newer[slot] = duplicates = 0.0
        for other in range(count):
            if buffers.position[other] > buffers.position[slot]:
                buffers.newer[slot] += buffers.weight[other]
                if buffers.item[other] == buffers.item[slot]:
                    duplicates += buffers.weight[other]
        if buffers.position[slot] < 0:
            features[:] = 0.0
            continue
        elapsed = float(max(newest - buffers.time[slot], 0))
        features[RATING] = to_state((buffers.rating[slot] - center) / spread)
        features[SIGNAL] = to_state(buffers.signal[slot])
        features[LOG_AGE] = _log1p(layers.logs, seen - 1 - buffers.position[slot])
        features[RANK] = to_state(buffers.newer[slot] / total)
        features[LOG_ELAPSED] = to_state(math.log1p(elapsed) / LOG_TIME_SCALE)
        features[LOG_REPEATS] = _log1p(layers.logs, buffers.repeats[slot])
        features[NEWER_DUPLICATES] = to_state(duplicates)
        features[LOG_SIGNAL] = to_state(math.log1p(abs(buffers.signal[slot]) / SIGNAL_SCALE))
        features[AGE] = min(seen - 1 - buffers.position[slot], AGE_LIMIT) / AGE_SCALE
    return total


@inner_loop
def _log1p(logs, whole):
    """Return log(1 + a whole number) on the fixed-point grid, from the table if it is there."""
    return logs[whole] if whole < len(logs) else to_state(math.log1p(float(whole)))


@inner_loop
def _network(layers, run, buffers, count, total):
    """Add the network's output to the scores, from features and the items' parts."""
    hidden = layers.bias.shape[1]
    buffers.mean[:] = 0.0
    for slot in range(count):
        features, first = buffers.features[slot], buffers.first[slot]
        multiply(first, features, layers.feature_weight[run], buffers.nonzero)
        for unit in range(hidden):
            first[unit] = to_state(max(first[unit], 0.0))
        add(buffers.mean, buffers.weight[slot], first)
        newer = layers.scale[run, 2] * buffers.newer[slot]
        buffers.score[slot] += dot(features, layers.feature_direct[run]) - newer
    context = buffers.second[0]
    copy(context, layers.bias[run])
    for unit in range(hidden):
        buffers.mean[unit] = to_state(buffers.mean[unit] / total)
    multiply(context, buffers.mean, layers.context_weight[run], buffers.nonzero)
    for slot in range(count - 1, -1, -1):  # the first row holds the context until the end
        second = buffers.second[slot]
        copy(second, context)
        multiply(second, buffers.first[slot], layers.candidate_weight[run], buffers.nonzero)
        for unit in range(hidden):
            second[unit] = to_state(max(second[unit], 0.0))
        buffers.score[slot] += dot(second, layers.output[run])


@inner_loop
def _paper_network(layers, run, count, buffers):
    """Score all candidates by the paper's network, from their ratings."""
    first, second, hidden = buffers.mean, buffers.second[0], layers.input_weight.shape[2]
    unknown = layers.input_weight.shape[1] - 1
    copy(first, layers.input_bias[run])
    for slot in range(count):
        item = buffers.row[slot] if buffers.row[slot] >= 0 else unknown
        rating = to_state(buffers.rating[slot] / layers.spread[run])
        add(first, rating, layers.input_weight[run, item])
    copy(second, layers.hidden_bias[run])
    for unit in range(hidden):
        first[unit] = to_state(max(first[unit], 0.0))
    multiply(second, first, layers.hidden_weight[run], buffers.nonzero)
    for unit in range(hidden):
        second[unit] = to_state(max(second[unit], 0.0))
    for slot in range(count):
        item = buffers.row[slot] if buffers.row[slot] >= 0 else unknown
        product = dot(layers.output_weight[run, item], second)
        buffers.score[slot] = product + layers.output_bias[run, item]


# --- Influence --------------------------------------------------------------------------------


@large_loop
def _influence(scorer, run, seen, size, count, buffers):
    """Score candidates by the order in which the greedy coreset adds them.

    The gains are not exact sums; they are quantized before they are compared.
    """
    model, inner = scorer.squared_error, buffers.inner
    slope, solved, chosen = buffers.slope, buffers.solved, buffers.chosen
    _gram_matrices(model, run, count, buffers)
    chosen[:] = 0.0
    buffers.score[:] = 0.0
    for added in range(size):
        _refit(model, run, count, model.constants[run, 4 + added], buffers)
        for slot in range(count):
            output = predict(model, run, buffers.row[slot], inner.user)
            slope[slot] = solved[slot] = 2 * (output - inner.target[slot])
            for other in range(count):
                buffers.system[slot, other] = 2 * inner.gram[slot, other]
            buffers.system[slot, slot] += scorer.damping
        _eliminate(buffers.system, solved, count)
        best, most = -1, -np.inf
        for slot in range(count):
            gain = 0.0
            for other in range(count):
                gain += inner.gram[slot, other] * solved[other]
            gain = slope[slot] * gain
            if len(scorer.decay) > 0:
                factor = _decay(scorer.decay, seen - 1 - buffers.position[slot])
                gain = gain * factor if gain > 0 else gain / factor  # age lowers either
            gain = quantize(gain, SCORE)
            more = gain >= most or gain != gain  # the last among equals; NaN first
            if chosen[slot] == 0.0 and more:
                best, most = slot, gain
        chosen[best] = 1.0
        buffers.score[best] = size - added


@inner_loop
def _gram_matrices(model, run, count, buffers):
    """Write the Gram matrix of the candidates, exact and quantized, their scores and targets."""
    inner, vectors, loading = buffers.inner, model.vectors[run], model.constants[run, 0]
    copy(inner.user, model.prior[run])
    for left in range(count):
        one = buffers.row[left]
        inner.initial_score[left] = predict(model, run, one, inner.user)
        inner.target[left] = standardise(model, run, buffers.rating[left])
        for right in range(left + 1):
            product = dot(vectors[one], vectors[buffers.row[right]]) + loading * loading
            inner.gram[left, right] = inner.gram[right, left] = product
            buffers.near[left, right] = buffers.near[right, left] = quantize(product, STATE)


@inner_loop
def _refit(model, run, count, rate, buffers):
    """Adapt the user vector to the chosen candidates, by coefficients."""
    inner, dim = buffers.inner, model.vectors.shape[2]
    loading, penalty = model.constants[run, 0], model.constants[run, 1]
    inner.coefficient[:] = 0.0
    copy(inner.score, inner.initial_score)
    for _ in range(model.steps):
        for slot in range(count):
            gradient = 2 * (inner.score[slot] - inner.target[slot]) * buffers.chosen[slot]
            if model.has_penalty:
                gradient = gradient + penalty * inner.coefficient[slot]
            inner.coefficient[slot] = quantize(inner.coefficient[slot] - rate * gradient, STATE)
        for slot in range(count):
            change = dot(buffers.near[slot, :count], inner.coefficient[:count])
            inner.score[slot] = inner.initial_score[slot] + change
    copy(inner.user, model.prior[run])
    for slot in range(count):
        add(inner.user[:dim], inner.coefficient[slot], model.vectors[run, buffers.row[slot]])
        inner.user[dim] += loading * inner.coefficient[slot]
    for place in range(dim + 1):
        inner.user[place] = quantize(inner.user[place], STATE)


@inner_loop
def _eliminate(matrix, target, size):
    """Replace the target by the solution of a linear system: `influence.solve_dense`."""
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
