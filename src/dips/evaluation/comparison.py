"""Compare policies: means over folds, and a paired bootstrap over users.

Over five folds each user is tested once. A rank test over five folds cannot reach p = 0.05. The
test therefore resamples users, pooled over the test parts of all folds. Holm's method corrects the
p-values over all rows of one metric. `dips.evaluation.significance` has the rule that decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dips.evaluation.metrics import LOWER_IS_BETTER, primary_metric
from dips.evaluation.progressive import Scores

Float64 = npt.NDArray[np.float64]
RESAMPLES = 10_000
RESAMPLES_PER_ROW = 100
"""Resamples for each row of Holm's family: the smallest corrected p-value is then 0.02."""
CHUNK = 250
BEST_RULE = "best-rule"
"""Name of the composite of the rules that are best on validation, one per fold."""


@dataclass(frozen=True, order=True)
class Cell:
    """A cell of a comparison: a policy at a sketch size and a refresh period."""

    policy: str
    size: int
    every: int


@dataclass(frozen=True, eq=False)
class UserSums:
    """Sums of metric terms by user, for one run on the test users of one fold."""

    users: Sequence[str]
    """Original ids."""
    count: Float64
    """Predictions per user, [users]."""
    sums: Mapping[str, Float64]
    """By metric term: sums over a user's predictions, [users]."""
    fold: int = 0


def user_sums(scores: Scores, ids: Sequence[str]) -> UserSums:
    """Return the sums of an evaluation under the given user ids."""
    sums = {name: np.asarray(total) for name, total in scores.sums.items()}
    return UserSums(ids, np.asarray(scores.count), sums)


def metric_name(term: str) -> str:
    """Return the metric that a pooled term gives."""
    return "rmse" if term == "squared_error" else term


def fold_of(row: Mapping[str, Any]) -> int:
    """Return the fold of a run. Results of version 0.1 have a seed for each split instead."""
    return int(row["fold"] if "fold" in row else row["seed"])


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over folds of each test metric in each cell.

    Repeats of one fold are averaged first.

    Args:
        rows: One per run, with `policy`, `size`, `every`, `fold` and `test`.

    Returns:
        One row per cell and metric: policy, size, every, metric, mean, std, n (number of folds).
    """
    groups: dict[tuple[Cell, str], dict[int, list[float]]] = {}
    for row in rows:
        cell = Cell(row["policy"], row["size"], row["every"])
        for metric, value in row["test"].items():
            groups.setdefault((cell, metric), {}).setdefault(fold_of(row), []).append(value)
    found = []
    for (cell, metric), folds in groups.items():
        values = [float(np.mean(repeats)) for repeats in folds.values()]
        found.append(
            {
                "policy": cell.policy,
                "size": cell.size,
                "every": cell.every,
                "metric": metric,
                "mean": float(np.mean(values)),
                "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
                "n": len(values),
            }
        )
    return found


def best_rules(
    rows: Sequence[Mapping[str, Any]], rules: Collection[str]
) -> dict[tuple[int, int], dict[int, str]]:
    """Return the rule that is best on validation, by (size, every) and by fold.

    Repeats of one fold are averaged first. Test metrics are not read.

    Args:
        rows: One per run, with `policy`, `size`, `every`, `fold` and `valid`.
        rules: Names of the static policies to choose from.

    Returns:
        Names of policies; places with fewer than two rules are left out.
    """
    losses: dict[tuple[int, int], dict[int, dict[str, list[float]]]] = {}
    for row in rows:
        if row["policy"] in rules:
            metric = primary_metric(row["valid"])
            loss = row["valid"][metric] * (1 if metric in LOWER_IS_BETTER else -1)
            folds = losses.setdefault((row["size"], row["every"]), {})
            folds.setdefault(fold_of(row), {}).setdefault(row["policy"], []).append(loss)
    return {
        place: {
            fold: min(by_rule, key=lambda name: float(np.mean(by_rule[name])))
            for fold, by_rule in sorted(folds.items())
        }
        for place, folds in losses.items()
        if len({name for by_rule in folds.values() for name in by_rule}) > 1
    }


def compare_pairs(
    results: Mapping[Cell, Sequence[UserSums]],
    *,
    rules: Collection[str] = (),
    seed: int = 0,
    resamples: int | None = None,
) -> list[dict[str, Any]]:
    """Compare every pair of policies with the same size and period by a paired bootstrap.

    Users are resampled with replacement; both policies of a pair get the same resamples. Sums of
    repeats on one fold are added up, so each user is one unit. The p-values are corrected by Holm's
    method over all rows of one metric: over all pairs and all cells.

    Args:
        results: Sums by user of each cell, one entry per fold and repeat.
        rules: Policies that are not compared with `best-rule`, because it is made of them.
        seed: Seed of the resampling.
        resamples: Number of bootstrap resamples. Default: 10,000, or more in large tables.

    Returns:
        One row per pair (a, b), cell and metric: `diff` (a minus b), 95 % interval `low` to `high`,
        the Holm-corrected p-value `p`, and `folds`, the difference in each fold.
    """
    pools = {cell: _pool(parts) for cell, parts in results.items()}
    by_users: dict[tuple[str, ...], list[Cell]] = {}
    for cell, pool in pools.items():
        by_users.setdefault(tuple(pool.users), []).append(cell)
    pairs = [_pairs(cells, rules) for cells in by_users.values()]
    count = resamples or max(RESAMPLES, RESAMPLES_PER_ROW * sum(map(len, pairs)))
    found: list[dict[str, Any]] = []
    for cells, chosen in zip(by_users.values(), pairs, strict=True):
        found += _compare(cells, chosen, pools, seed, count)
    for row in found:
        a, b = (results[Cell(row[name], row["size"], row["every"])] for name in ("a", "b"))
        row["folds"] = _fold_differences(a, b, row["metric"])
    order = {cell: index for index, cell in enumerate(results)}
    found.sort(key=lambda row: order[Cell(row["a"], row["size"], row["every"])])
    apply_holm(found)
    return found


def _pairs(cells: Sequence[Cell], rules: Collection[str]) -> list[tuple[Cell, Cell]]:
    """Return all pairs of cells with the same size and period, without a rule and `best-rule`."""
    return [
        (a, b)
        for a, b in itertools.combinations(cells, 2)
        if (a.size, a.every) == (b.size, b.every)
        and not (BEST_RULE in (a.policy, b.policy) and {a.policy, b.policy} & set(rules))
    ]


def _fold_differences(a: Sequence[UserSums], b: Sequence[UserSums], metric: str) -> list[float]:
    """Return metric a minus metric b on the users of each fold, in the order of the folds."""
    found = []
    for fold in sorted({part.fold for part in a}):
        first, second = (_pool([part for part in parts if part.fold == fold]) for parts in (a, b))
        term = next(term for term in first.sums if metric_name(term) == metric)
        columns = (first.count, first.sums[term], second.sums[term])
        totals = np.array([[column.sum() for column in columns]])
        found.append(float(_difference(totals, 1, 2, term)[0]))
    return found


def _pool(parts: Sequence[UserSums]) -> UserSums:
    """Add up each user's sums over the runs in which it was a test user."""
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
    cells: Sequence[Cell],
    pairs: Sequence[tuple[Cell, Cell]],
    pools: Mapping[Cell, UserSums],
    seed: int,
    resamples: int,
) -> list[dict[str, Any]]:
    """Compare pairs of cells that have the same users, with one set of resamples."""
    if not pairs:
        return []
    terms = list(pools[cells[0]].sums)
    columns = [pools[cell].sums[term] for cell in cells for term in terms]
    table = np.stack([pools[cells[0]].count, *columns], axis=1)  # [users, 1 + cells * terms]
    total, resampled = table.sum(0)[None], resample_sums(table, seed, resamples)
    rows = []
    for a, b in pairs:
        i, j = cells.index(a), cells.index(b)
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


def apply_holm(rows: Sequence[dict[str, Any]]) -> None:
    """Apply Holm's correction in place, for each metric over all pairs and cells of the table."""
    families: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        families.setdefault(row["metric"], []).append(row)
    for family in families.values():
        largest = 0.0
        for rank, row in enumerate(sorted(family, key=lambda row: float(row["p"]))):
            largest = max(largest, min(1.0, row["p"] * (len(family) - rank)))
            row["p"] = largest
