"""Is one policy better than another? Means over splits, and a paired bootstrap over users.

Five splits share users, and a rank test over five splits cannot reach 0.05; so the test resamples
users, pooled over the splits' test parts, and Holm's rule corrects over the cells of a table.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
RESAMPLES = 10_000
CHUNK = 250


@dataclass(frozen=True, order=True)
class Cell:
    """One place of a table: a policy at a size and a period."""

    policy: str
    size: int
    every: int


@dataclass(frozen=True, eq=False)
class UserSums:
    """What each test user of one run adds to the metrics."""

    users: Sequence[str]
    count: Float64  # [users]
    sums: Mapping[str, Float64]  # [users] each


def metric_name(term: str) -> str:
    """What a pooled sum is called once it is a metric."""
    return "rmse" if term == "squared_error" else term


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation of the test metrics over seeds, for every cell and metric."""
    groups: dict[tuple[Cell, str], list[float]] = {}
    for row in rows:
        cell = Cell(row["policy"], row["size"], row["every"])
        for metric, value in row["test"].items():
            groups.setdefault((cell, metric), []).append(value)
    return [
        {
            "policy": cell.policy,
            "size": cell.size,
            "every": cell.every,
            "metric": metric,
            "mean": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            "n": len(values),
        }
        for (cell, metric), values in groups.items()
    ]


def compare_pairs(
    results: Mapping[Cell, Sequence[UserSums]], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[dict[str, Any]]:
    """Every pair of policies in every cell: difference, 95 % interval, Holm-corrected p-value.

    `results` has one entry per seed. A difference is a minus b; the interval and p come from
    resampling users with replacement, the same draws for both sides.
    """
    pools = {cell: _pool(parts) for cell, parts in results.items()}
    found: list[dict[str, Any]] = []
    for users in {pool.users for pool in pools.values()}:
        cells = [cell for cell, pool in pools.items() if pool.users == users]
        found += _compare(cells, pools, seed, resamples)
    order = {cell: place for place, cell in enumerate(results)}
    found.sort(key=lambda row: order[Cell(row["a"], row["size"], row["every"])])
    _holm(found)
    return found


@dataclass(frozen=True, eq=False)
class _Pool:
    users: tuple[str, ...]
    count: Float64
    sums: dict[str, Float64]


def _pool(parts: Sequence[UserSums]) -> _Pool:
    """Add up a user's shares over the splits in which it was a test user."""
    names = sorted({user for part in parts for user in part.users})
    place = {user: index for index, user in enumerate(names)}
    count = np.zeros(len(names))
    sums = {term: np.zeros(len(names)) for term in parts[0].sums}
    for part in parts:
        rows = np.array([place[user] for user in part.users], dtype=np.int64)
        np.add.at(count, rows, part.count)
        for term, total in sums.items():
            np.add.at(total, rows, part.sums[term])
    return _Pool(tuple(names), count, sums)


def _compare(
    cells: Sequence[Cell], pools: Mapping[Cell, _Pool], seed: int, resamples: int
) -> list[dict[str, Any]]:
    """All pairs among cells with the same users: one set of resamples serves them all."""
    terms = list(pools[cells[0]].sums)
    columns = [pools[cell].sums[term] for cell in cells for term in terms]
    table = np.stack([pools[cells[0]].count, *columns], axis=1)  # [users, 1 + cells * terms]
    plain, drawn = table.sum(0)[None], _resample(table, seed, resamples)
    rows = []
    for (i, a), (j, b) in itertools.combinations(enumerate(cells), 2):
        if (a.size, a.every) != (b.size, b.every):
            continue
        for k, term in enumerate(terms):
            pick = (1 + i * len(terms) + k, 1 + j * len(terms) + k)
            diff = float(_difference(plain, *pick, term)[0])
            spread = _difference(drawn, *pick, term)
            low, high = np.quantile(spread, [0.025, 0.975])
            rows.append(
                {
                    "a": a.policy,
                    "b": b.policy,
                    "size": a.size,
                    "every": a.every,
                    "metric": metric_name(term),
                    "diff": diff,
                    "low": float(low),
                    "high": float(high),
                    "p": _two_sided(spread),
                }
            )
    return rows


def _resample(table: Float64, seed: int, resamples: int) -> Float64:
    """[resamples, columns] sums over users drawn with replacement."""
    rng = np.random.default_rng(seed)
    users = len(table)
    drawn = []
    for low in range(0, resamples, CHUNK):
        rows = min(CHUNK, resamples - low)
        chosen = rng.integers(0, users, (rows, users)) + users * np.arange(rows)[:, None]
        times = np.bincount(chosen.ravel(), minlength=rows * users).reshape(rows, users)
        drawn.append(times @ table)
    return np.concatenate(drawn)


def _difference(sums: Float64, a: int, b: int, term: str) -> Float64:
    left, right = sums[:, a] / sums[:, 0], sums[:, b] / sums[:, 0]
    if term == "squared_error":
        left, right = np.sqrt(left), np.sqrt(right)
    difference: Float64 = left - right
    return difference


def _two_sided(spread: Float64) -> float:
    """Bootstrap p-value of no difference; never 0, because the draws are finite."""
    tail = min(int((spread <= 0).sum()), int((spread >= 0).sum()))
    return min(1.0, 2 * (tail + 1) / (len(spread) + 1))


def _holm(rows: Sequence[dict[str, Any]]) -> None:
    """Correct the p-values of each pair and metric over the cells of the table, in place."""
    families: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        families.setdefault((row["a"], row["b"], row["metric"]), []).append(row)
    for family in families.values():
        largest = 0.0
        for rank, row in enumerate(sorted(family, key=lambda row: float(row["p"]))):
            largest = max(largest, min(1.0, row["p"] * (len(family) - rank)))
            row["p"] = largest
