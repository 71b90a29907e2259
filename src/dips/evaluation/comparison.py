"""Compare policies: means over splits, and a paired bootstrap over users.

Five splits share users, and a rank test over five splits cannot reach p = 0.05. The test therefore
resamples users, pooled over the test parts of all splits. Holm's method corrects the p-values over
the cells of a table.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dips.evaluation.progressive import Scores

Float64 = npt.NDArray[np.float64]
RESAMPLES = 10_000
CHUNK = 250


@dataclass(frozen=True, order=True)
class Cell:
    """A cell of a comparison: a policy at a sketch size and a refresh period."""

    policy: str
    size: int
    every: int


@dataclass(frozen=True, eq=False)
class UserSums:
    """Sums of metric terms by user, for one run."""

    users: Sequence[str]
    """Original ids."""
    count: Float64
    """Predictions per user, [users]."""
    sums: Mapping[str, Float64]
    """By metric term: sums over a user's predictions, [users]."""


def user_sums(scores: Scores, ids: Sequence[str]) -> UserSums:
    """Return the sums of an evaluation under the given user ids."""
    sums = {name: np.asarray(total) for name, total in scores.sums.items()}
    return UserSums(ids, np.asarray(scores.count), sums)


def metric_name(term: str) -> str:
    """Return the metric that a pooled term gives."""
    return "rmse" if term == "squared_error" else term


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over seeds of each test metric in each cell.

    Args:
        rows: One per run, with `policy`, `size`, `every` and `test`.

    Returns:
        One row per cell and metric: policy, size, every, metric, mean, std, n.
    """
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
    """Compare every pair of policies with the same size and period by a paired bootstrap.

    Users are resampled with replacement; both policies of a pair get the same resamples.

    Args:
        results: Sums by user of each cell, one entry per seed.
        seed: Seed of the resampling.
        resamples: Number of bootstrap resamples.

    Returns:
        One row per pair (a, b), cell and metric: `diff` (a minus b), 95 % interval `low` to `high`,
        and the Holm-corrected p-value `p`.
    """
    pools = {cell: _pool(parts) for cell, parts in results.items()}
    found: list[dict[str, Any]] = []
    for users in {tuple(pool.users) for pool in pools.values()}:
        cells = [cell for cell, pool in pools.items() if tuple(pool.users) == users]
        found += _compare(cells, pools, seed, resamples)
    order = {cell: index for index, cell in enumerate(results)}
    found.sort(key=lambda row: order[Cell(row["a"], row["size"], row["every"])])
    _holm(found)
    return found


def _pool(parts: Sequence[UserSums]) -> UserSums:
    """Add up each user's sums over the splits in which it was a test user."""
    names = sorted({user for part in parts for user in part.users})
    row_of = {user: index for index, user in enumerate(names)}
    count = np.zeros(len(names))
    sums = {term: np.zeros(len(names)) for term in parts[0].sums}
    for part in parts:
        rows = np.array([row_of[user] for user in part.users], dtype=np.int64)
        np.add.at(count, rows, part.count)
        for term, total in sums.items():
            np.add.at(total, rows, part.sums[term])
    return UserSums(names, count, sums)


def _compare(
    cells: Sequence[Cell], pools: Mapping[Cell, UserSums], seed: int, resamples: int
) -> list[dict[str, Any]]:
    """Compare all pairs among cells with the same users, with one set of resamples."""
    terms = list(pools[cells[0]].sums)
    columns = [pools[cell].sums[term] for cell in cells for term in terms]
    table = np.stack([pools[cells[0]].count, *columns], axis=1)  # [users, 1 + cells * terms]
    total, resampled = table.sum(0)[None], resample_sums(table, seed, resamples)
    rows = []
    for (i, a), (j, b) in itertools.combinations(enumerate(cells), 2):
        if (a.size, a.every) != (b.size, b.every):
            continue
        for k, term in enumerate(terms):
            pick = (1 + i * len(terms) + k, 1 + j * len(terms) + k)
            diff = float(_difference(total, *pick, term)[0])
            spread = _difference(resampled, *pick, term)
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


def resample_sums(table: Float64, seed: int, resamples: int) -> Float64:
    """Return sums over users drawn with replacement, [resamples, columns]."""
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
    """Return metric a minus metric b from columns of sums, [rows]; column 0 is the count."""
    left, right = sums[:, a] / sums[:, 0], sums[:, b] / sums[:, 0]
    if term == "squared_error":
        left, right = np.sqrt(left), np.sqrt(right)
    difference: Float64 = left - right
    return difference


def _two_sided(spread: Float64) -> float:
    """Return the two-sided bootstrap p-value of no difference; above 0, as resamples are finite."""
    tail = min(int((spread <= 0).sum()), int((spread >= 0).sum()))
    return min(1.0, 2 * (tail + 1) / (len(spread) + 1))


def _holm(rows: Sequence[dict[str, Any]]) -> None:
    """Apply Holm's correction to each pair and metric over the cells of the table, in place."""
    families: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        families.setdefault((row["a"], row["b"], row["metric"]), []).append(row)
    for family in families.values():
        largest = 0.0
        for rank, row in enumerate(sorted(family, key=lambda row: float(row["p"]))):
            largest = max(largest, min(1.0, row["p"] * (len(family) - rank)))
            row["p"] = largest
