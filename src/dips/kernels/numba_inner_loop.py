"""Adapt user vectors to sketches (inner loop, Eq. 7) in numba loops; importing this needs numba.

The results equal `descent.descend_linear` (squared error) and `predicted_score` (linearised
softmax) bit for bit.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dips.kernels.numba_fixed_point import STATE, add, copy, dot, inner_loop, kernel, quantize


class InnerWorkspace(NamedTuple):
    """Buffers of the inner loop of one user; `dim` includes the user bias."""

    gram: np.ndarray  # [size, size] dot products of the entries' vectors
    coefficient: np.ndarray  # [size] coefficients of the entries' vectors in the user vector
    initial_score: np.ndarray  # [size] scores for the initial user vector
    target: np.ndarray  # [size] standardised ratings
    score: np.ndarray  # [size]
    gradient: np.ndarray  # [dim]
    user: np.ndarray  # [dim] the adapted user vector; linearised: its change
    product: np.ndarray  # [dim] curvature times the change


def inner_workspace(size: int, dim: int) -> InnerWorkspace:
    """Return buffers for `size` entries and user vectors of `dim` numbers."""
    gradient, user, product = np.empty(dim), np.empty(dim), np.empty(dim)
    gram = np.zeros((size, size))
    scores, target = (np.zeros(size), np.zeros(size)), np.zeros(size)
    return InnerWorkspace(
        gram, np.empty(size), scores[0], target, scores[1], gradient, user, product
    )


@inner_loop
def predict(model, run, item, user):
    """Return the score of an item for an adapted user vector (squared error)."""
    dim = model.vectors.shape[2]
    score = model.intercept[run, item] + dot(model.vectors[run, item], user[:dim])
    return score + model.constants[run, 0] * user[dim]


@inner_loop
def standardise(model, run, rating):
    """Return a rating in the unit of scores: `Recommender.standardise`."""
    return quantize((rating - model.constants[run, 2]) / model.constants[run, 3], STATE)


@inner_loop
def adapt(model, run, item, rating, inner):
    """Write the user vector adapted to these items [size] to `inner.user`; -1 is skipped."""
    copy(inner.user, model.prior[run])
    entries = 0
    for slot in range(len(item)):
        if item[slot] >= 0:
            entries += 1
            inner.initial_score[slot] = predict(model, run, item[slot], inner.user)
            inner.target[slot] = standardise(model, run, rating[slot])
    rate = model.constants[run, 4 + entries]
    if len(item) < len(inner.user):  # as `descent.descend_linear` decides
        _adapt_coefficients(model, run, rate, item, inner)
    else:
        _adapt_vector(model, run, rate, item, inner)


@inner_loop
def _adapt_coefficients(model, run, rate, item, inner):
    """Descend on the coefficients of the entries' vectors: fewer entries than dimensions."""
    size, dim = len(item), model.vectors.shape[2]
    loading, penalty = model.constants[run, 0], model.constants[run, 1]
    vectors = model.vectors[run]
    inner.coefficient[:] = 0.0
    copy(inner.score, inner.initial_score)
    for left in range(size):
        for right in range(left + 1):
            if item[left] >= 0 and item[right] >= 0:
                product = dot(vectors[item[left]], vectors[item[right]]) + loading * loading
                inner.gram[left, right] = inner.gram[right, left] = quantize(product, STATE)
    for _ in range(model.steps):
        for slot in range(size):
            if item[slot] >= 0:
                gradient = 2 * (inner.score[slot] - inner.target[slot])
                if model.has_penalty:
                    gradient = gradient + penalty * inner.coefficient[slot]
                inner.coefficient[slot] = quantize(inner.coefficient[slot] - rate * gradient, STATE)
        for slot in range(size):
            change = dot(inner.gram[slot], inner.coefficient)
            inner.score[slot] = inner.initial_score[slot] + change
    for slot in range(size):
        if item[slot] >= 0:
            add(inner.user[:dim], inner.coefficient[slot], vectors[item[slot]])
            inner.user[dim] += loading * inner.coefficient[slot]
    for place in range(dim + 1):
        inner.user[place] = quantize(inner.user[place], STATE)


@inner_loop
def _adapt_vector(model, run, rate, item, inner):
    """Descend on the user vector itself: at least as many entries as dimensions."""
    dim = model.vectors.shape[2]
    loading, penalty = model.constants[run, 0], model.constants[run, 1]
    prior = model.prior[run]
    copy(inner.score, inner.initial_score)
    for _ in range(model.steps):
        inner.gradient[:] = 0.0
        for slot in range(len(item)):
            if item[slot] >= 0:
                error = 2 * (inner.score[slot] - inner.target[slot])
                add(inner.gradient[:dim], error, model.vectors[run, item[slot]])
                inner.gradient[dim] += loading * error
        for place in range(dim + 1):
            if model.has_penalty:
                change = inner.user[place] - prior[place]
                inner.gradient[place] = inner.gradient[place] + penalty * change
            inner.user[place] = quantize(inner.user[place] - rate * inner.gradient[place], STATE)
        for slot in range(len(item)):
            if item[slot] >= 0:
                inner.score[slot] = predict(model, run, item[slot], inner.user)


@inner_loop
def adapt_linearised(model, run, item, position, seen, inner):
    """Write the change of the user vector to `inner.user` (linearised softmax); -1 is skipped."""
    oldest, entries, total = model.age_weight.shape[1] - 1, 0, 0.0
    direction, change, dim = inner.gradient, inner.user, model.vectors.shape[2]
    direction[:] = 0.0
    for slot in range(len(item)):
        if item[slot] >= 0:
            entries += 1
            weight = model.age_weight[run, min(seen - 1 - position[slot], oldest)]
            total += weight
            add(direction[:dim], weight, model.direction[run, item[slot]])
    rate = model.rate[run, entries]
    pace = rate / max(rate * total * model.curvature_bound[run], 1.0)
    change[:] = 0.0
    for _ in range(model.steps):
        for place in range(dim):
            inner.product[place] = dot(model.curvature[run, place], change)
        for place in range(dim):
            gradient = direction[place] - total * inner.product[place]
            change[place] = quantize(change[place] + pace * gradient, STATE)


@inner_loop
def predict_linearised(model, run, item, change):
    """Return the score of an item after this change of the user vector (linearised softmax)."""
    return model.intercept[run, item] + dot(model.vectors[run, item], change)


@kernel
def residuals(inputs, model, found, inner, first, stride):
    """Write 2 (rating - prediction), standardised, to `found` [rows, n]: every `stride`-th row."""
    rows, count = found.shape
    users = rows // len(model.prior)
    for row in range(first, rows, stride):
        run = row // users
        adapt(model, run, inputs.sketch_item[row], inputs.sketch_rating[row], inner)
        for slot in range(count):
            output = predict(model, run, inputs.item[row, slot], inner.user)
            target = standardise(model, run, inputs.rating[row, slot])
            found[row, slot] = (output - target) * -2.0
