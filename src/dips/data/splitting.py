"""Split a dataset into train, valid and test, by users or by time. Knows no policies or models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dips.data.interactions import Int64, Interactions
from dips.errors import ConfigError, DataError

Parts = tuple[Interactions, Interactions, Interactions]
"""Train, valid and test."""


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
    if data.users < 3:
        raise DataError(
            f"{data.name} has {data.users} user(s); a split by users needs at least 3 "
            "(split by time instead: --split time)"
        )
    order = np.random.default_rng(seed).permutation(data.users)
    first = max(1, round(fractions[0] * data.users))
    second = max(1, round(fractions[1] * data.users))
    first = min(first, data.users - second - 1)
    return (
        data.select(order[:first]),
        data.select(order[first : first + second]),
        data.select(order[first + second :]),
    )


class Halves(NamedTuple):
    """Two halves of the validation users, as positions in their part."""

    selection: Int64
    """Users that select the epoch and the baseline."""
    verdict: Int64
    """Users that the verdict is measured on."""


def validation_halves(users: int, *, seed: int) -> Halves:
    """Divide validation users at random into halves. A single user is in both.

    >>> [len(half) for half in validation_halves(5, seed=0)]
    [3, 2]
    """
    order = np.random.default_rng(seed).permutation(users)
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
