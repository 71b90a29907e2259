"""Split a dataset into train, valid and test, by users or by time. Knows no policies or models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dips.data.interactions import Int64, Interactions
from dips.errors import ConfigError, DataError

Parts = tuple[Interactions, Interactions, Interactions]
"""Train, valid and test."""
FOLDS = 5
"""Number of folds of one permutation of users."""
FRACTIONS = (0.6, 0.2, 0.2)
"""Shares of users of the parts of a fold."""


def by_users(data: Interactions, fractions: Sequence[float], *, seed: int) -> Parts:
    """Split the users at random into train, valid and test; each user is in one part.

    Args:
        data: The dataset.
        fractions: Shares of users of the three parts; they sum to 1.
        seed: Seed of the permutation of users.

    Raises:
        ConfigError: If the shares are not positive or do not sum to 1.
        DataError: If there are fewer than 3 users.
    """
    _check(fractions)
    order, first, second = _permute(data, fractions, seed)
    return (
        data.select(order[:first]),
        data.select(order[first:second]),
        data.select(order[second:]),
    )


def by_fold(data: Interactions, fold: int, *, seed: int) -> Parts:
    """Return train, valid and test of one of five folds of a permutation of the users.

    The permutation is cut into fifths. Fold f takes three fifths for training, the next one for
    validation and the one after that as test, starting with fifth f. Over all five folds each user
    is in test once, in validation once and in training three times. Fold 0 equals `by_users` with
    60 %, 20 % and 20 %.

    Args:
        data: The dataset.
        fold: Number of the fold, 0 to 4.
        seed: Seed of the permutation of users.

    Raises:
        ConfigError: If there is no such fold.
        DataError: If there are fewer than 3 users, or fewer than 5 for a fold above 0.
    """
    if not 0 <= fold < FOLDS:
        raise ConfigError(f"fold is {fold}: it must be between 0 and {FOLDS - 1}")
    if fold and data.users < FOLDS:
        raise DataError(
            f"{data.name} has {data.users} users; {FOLDS} folds need at least {FOLDS} "
            "(run the first fold only: --folds 1)"
        )
    order, first, second = _permute(data, FRACTIONS, seed)
    edges = [0, first // 3, 2 * first // 3, first, second]
    fifths = np.split(order, edges[1:])
    fifths = [*fifths[fold:], *fifths[:fold]]
    return data.select(np.concatenate(fifths[:3])), data.select(fifths[3]), data.select(fifths[4])


def _permute(
    data: Interactions, fractions: Sequence[float], seed: int
) -> tuple[npt.NDArray[np.int64], int, int]:
    """Return a permutation of the users, and where its second and third part begin."""
    if data.users < 3:
        raise DataError(
            f"{data.name} has {data.users} user(s); a split by users needs at least 3 "
            "(split by time instead: --split time)"
        )
    order = np.random.default_rng(seed).permutation(data.users)
    first = max(1, round(fractions[0] * data.users))
    second = max(1, round(fractions[1] * data.users))
    first = min(first, data.users - second - 1)
    return order, first, first + second


class Halves(NamedTuple):
    """Two halves of the validation users, as positions in their part."""

    selection: Int64
    """Users that select the epoch and the baseline."""
    verdict: Int64
    """Users that the verdict is measured on."""


def validation_halves(users: int) -> Halves:
    """Divide validation users at random into halves, always in the same way. One user is in both.

    >>> [len(half) for half in validation_halves(5)]
    [3, 2]
    """
    order = np.random.default_rng(0).permutation(users)
    middle = -(-users // 2)
    return Halves(np.sort(order[:middle]), np.sort(order[middle if users > 1 else 0 :]))


def by_time(data: Interactions, fractions: Sequence[float]) -> Parts:
    """Split every user's history in time: train, then valid, then test.

    A later part holds the whole history up to its end. Its earlier events are `warmup`: they build
    the sketch and are not evaluated.

    Args:
        data: The dataset.
        fractions: Shares of each history; they sum to 1.

    Raises:
        ConfigError: If the shares are not positive or do not sum to 1.
        DataError: If all histories are too short for one of the parts.
    """
    _check(fractions)
    shares = np.cumsum(fractions)
    ends = [np.floor(share * data.lengths + 1e-9).astype(np.int64) for share in shares[:2]]
    return _windows(data, ends)


def by_date(data: Interactions, fractions: Sequence[float]) -> Parts:
    """Split all events at two dates: train before the first, test from the second on.

    The dates are those that divide the events by the given shares. Users may be missing in a part.
    A later part holds whole histories, as in `by_time`.

    Args:
        data: The dataset, with times.
        fractions: Shares of all events; they sum to 1.

    Raises:
        ConfigError: If the shares are not positive or do not sum to 1.
        DataError: If there are no times, or if no event lies between two dates.
    """
    _check(fractions)
    if data.time is None:
        raise DataError(f"{data.name} has no times: split it by --split users or --split time")
    times = data.time[data.event_rows]
    order = np.sort(times)
    places = np.floor(np.cumsum(fractions)[:2] * len(order) + 1e-9).astype(np.int64)
    owner = np.repeat(np.arange(data.users), data.lengths)
    dates = order[places]
    if not order[0] < dates[0] < dates[1]:
        raise DataError(
            f"{data.name}: too many events share one time for a split at dates: use --split users "
            "or --split time"
        )
    ends = [np.bincount(owner[times < date], minlength=data.users) for date in dates]
    return _windows(data, ends)


def _windows(data: Interactions, ends: Sequence[Int64]) -> Parts:
    """Return train, valid and test, where [users] histories are cut after `ends` events."""
    edges = [np.zeros_like(data.lengths), *ends, data.lengths]
    parts = []
    for name, low, high in zip(("train", "valid", "test"), edges[:-1], edges[1:], strict=True):
        kept = np.flatnonzero(high > low)
        if len(kept) == 0:
            raise DataError(f"{data.name}: the histories are too short for a {name} part by time")
        parts.append(replace(data.select(kept), lengths=high[kept], warmup=low[kept]))
    return parts[0], parts[1], parts[2]


def _check(fractions: Sequence[float]) -> None:
    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise ConfigError(f"the three parts {tuple(fractions)} must be positive and sum to 1")
