"""Reading a sketch, as compiled loops: importing this needs numba.

By gradient descent on squared errors, the same bits as `descent.descend_linear` leaves at decision
time; and on a quadratic in the place of a softmax (`listen`), the same bits as `predicted_score.predicted_score`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dips.kernels.numba_fixed_point import STATE, add, dot, loop, put, quantize


class Desk(NamedTuple):
    """Where a loop notes what it reads."""

    gram: np.ndarray  # [size, size] products of the vectors of the entries
    share: np.ndarray  # [size] coefficients that descend
    begun: np.ndarray  # [size] scores at the start
    score: np.ndarray  # [size]
    fall: np.ndarray  # [dim + 1] slope in the user
    user: np.ndarray  # [dim + 1] the user's vector, and last the user's bias
    home: np.ndarray  # [dim + 1] what pulls back


@loop
def desk_for(size, dim):
    """For so many entries, and vectors of a user of this length."""
    gram, fall, user, home = np.zeros((size, size)), np.empty(dim), np.empty(dim), np.empty(dim)
    return Desk(gram, np.empty(size), np.zeros(size), np.zeros(size), fall, user, home)


@loop
def predicted(reader, run, item, user):
    """The score of an item."""
    dim = reader.vectors.shape[2]
    own = reader.intercept[run, item] + dot(reader.vectors[run, item], user[:dim])
    return own + reader.dials[run, 0] * user[dim]


@loop
def adapt(reader, run, item, rating, desk):
    """Leave the user as after reading these items; -1 is an empty slot."""
    put(desk.user, reader.prior[run])
    entries = 0
    for slot in range(len(item)):
        if item[slot] >= 0:
            entries += 1
            desk.begun[slot] = predicted(reader, run, item[slot], desk.user)
    rate = reader.dials[run, 2 + entries]
    if len(item) < len(desk.user):
        _by_coefficients(reader, run, rate, item, rating, desk)
    else:
        _by_vector(reader, run, rate, item, rating, desk)


@loop
def _by_coefficients(reader, run, rate, item, rating, desk):
    """Fewer features than dimensions: it is their coefficients that descend."""
    size, dim = len(item), reader.vectors.shape[2]
    loading, pull, vectors = reader.dials[run, 0], reader.dials[run, 1], reader.vectors[run]
    desk.share[:] = 0.0
    put(desk.score, desk.begun)
    for left in range(size):
        for right in range(left + 1):
            if item[left] >= 0 and item[right] >= 0:
                product = dot(vectors[item[left]], vectors[item[right]]) + loading * loading
                desk.gram[left, right] = desk.gram[right, left] = quantize(product, STATE)
    for _ in range(reader.steps):
        for slot in range(size):
            if item[slot] >= 0:
                fall = 2 * (desk.score[slot] - rating[slot])
                if reader.pulls:
                    fall = fall + pull * desk.share[slot]
                desk.share[slot] = quantize(desk.share[slot] - rate * fall, STATE)
        for slot in range(size):
            desk.score[slot] = desk.begun[slot] + dot(desk.gram[slot], desk.share)
    for slot in range(size):
        if item[slot] >= 0:
            add(desk.user[:dim], desk.share[slot], vectors[item[slot]])
            desk.user[dim] += loading * desk.share[slot]
    for place in range(dim + 1):
        desk.user[place] = quantize(desk.user[place], STATE)


@loop
def _by_vector(reader, run, rate, item, rating, desk):
    """More features than dimensions."""
    dim = reader.vectors.shape[2]
    loading, pull, prior = reader.dials[run, 0], reader.dials[run, 1], reader.prior[run]
    put(desk.score, desk.begun)
    for _ in range(reader.steps):
        desk.fall[:] = 0.0
        for slot in range(len(item)):
            if item[slot] >= 0:
                error = 2 * (desk.score[slot] - rating[slot])
                add(desk.fall[:dim], error, reader.vectors[run, item[slot]])
                desk.fall[dim] += loading * error
        for place in range(dim + 1):
            if reader.pulls:
                home = desk.user[place] - prior[place]
                desk.fall[place] = desk.fall[place] + pull * home
            desk.user[place] = quantize(desk.user[place] - rate * desk.fall[place], STATE)
        for slot in range(len(item)):
            if item[slot] >= 0:
                desk.score[slot] = predicted(reader, run, item[slot], desk.user)


@loop
def listen(listener, run, item, place, seen, desk):
    """Leave the user's way from the start in the place of the user; -1 is an empty slot."""
    oldest, entries, total = listener.strength.shape[1] - 1, 0, 0.0
    pulled, way, dim = desk.fall, desk.user, listener.vectors.shape[2]
    pulled[:] = 0.0
    for slot in range(len(item)):
        if item[slot] >= 0:
            entries += 1
            left = listener.strength[run, min(seen - 1 - place[slot], oldest)]
            total += left
            add(pulled[:dim], left, listener.pull[run, item[slot]])
    rate = listener.rate[run, entries]
    pace = rate / max(rate * total * listener.norm[run], 1.0)
    way[:] = 0.0
    for _ in range(listener.steps):
        for entry in range(dim):
            desk.home[entry] = dot(listener.bend[run, entry], way)
        for entry in range(dim):
            fall = pulled[entry] - total * desk.home[entry]
            way[entry] = quantize(way[entry] + pace * fall, STATE)


@loop
def expected(listener, run, item, way):
    """The score of an item at the end of that way."""
    return listener.intercept[run, item] + dot(listener.vectors[run, item], way)


@loop
def residuals(glance, reader, found, first, stride):
    """Of every `stride`-th row: twice how far a rating lies above the prediction, for each item."""
    rows, count = found.shape
    users = rows // len(reader.prior)
    desk = desk_for(glance.kept.shape[1], reader.prior.shape[1])
    for row in range(first, rows, stride):
        run = row // users
        adapt(reader, run, glance.kept[row], glance.kept_rating[row], desk)
        for slot in range(count):
            output = predicted(reader, run, glance.item[row, slot], desk.user)
            found[row, slot] = (output - glance.rating[row, slot]) * -2.0
