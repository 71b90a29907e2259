"""Statistics of a dataset. Knows nothing about files or printing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dips.data.interactions import Interactions, ragged
from dips.errors import DataError

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def describe(data: Interactions) -> dict[str, Any]:
    """Return statistics of a dataset, as `dips data describe --json` prints them.

    Args:
        data: The dataset, or a part of it.

    Returns:
        Sizes, rating histogram, history lengths, and shares of repeats, ties and popular items.
        `tied_neighbours` is the share of pairs of consecutive events of a user that have equal
        times, so that their order is not known; None without times or without such pairs.

    Raises:
        DataError: If there are no events.
    """
    rows = ragged(data.starts, data.lengths)
    users = np.repeat(np.arange(data.users, dtype=np.int64), data.lengths)
    items = data.item[rows].astype(np.int64)
    events = len(rows)
    if events == 0:
        raise DataError(f"{data.name}: there are no events to describe; select at least one user")
    distinct = len(np.unique(users * data.items + items))
    lengths = np.quantile(data.lengths, QUANTILES)
    return {
        "name": data.name,
        "users": data.users,
        "items": data.items,
        "interactions": events,
        "explicit": data.explicit,
        "ratings": _histogram(data, rows),
        "history_length": {
            "mean": events / data.users,
            **{f"q{round(100 * q)}": float(v) for q, v in zip(QUANTILES, lengths, strict=True)},
        },
        "repeats": 1.0 - distinct / events,
        "tied_neighbours": _ties(data, rows, users),
        "popularity": _popularity(items, data.items),
        "titles": data.titles is not None,
        "categories": data.categories is not None,
        "times": data.time is not None,
        "about": data.about,
    }


def _histogram(data: Interactions, rows: npt.NDArray[Any]) -> dict[str, int] | None:
    """Return the count of each rating, in 20 bins if there are more than 20 values."""
    if data.rating is None:
        return None
    ratings = data.rating[rows]
    values, counts = np.unique(ratings, return_counts=True)
    if len(values) <= 20:
        return {f"{v:g}": int(n) for v, n in zip(values, counts, strict=True)}
    counts, edges = np.histogram(ratings, bins=20)
    return {f"{v:g}+": int(n) for v, n in zip(edges, counts, strict=False)}


def _ties(data: Interactions, rows: npt.NDArray[Any], users: npt.NDArray[Any]) -> float | None:
    """Return the share of pairs of consecutive events of a user that have equal times."""
    neighbours = len(rows) - data.users
    if data.time is None or neighbours == 0:
        return None
    times = data.time[rows]
    tied = (times[1:] == times[:-1]) & (users[1:] == users[:-1])
    return float(tied.sum() / neighbours)


def _popularity(items: npt.NDArray[Any], total: int) -> dict[str, float]:
    """Return the share of events of the most popular items, and the Gini coefficient."""
    counts = np.sort(np.bincount(items, minlength=total))[::-1]
    shares = np.cumsum(counts) / counts.sum()
    top = {
        f"top_{percent}_percent": float(shares[max(1, round(total * percent / 100)) - 1])
        for percent in (1, 10)
    }
    ranks = np.arange(1, total + 1)
    gini = (total + 1 - 2 * float((counts * ranks).sum()) / float(counts.sum())) / total
    return {**top, "gini": gini}
