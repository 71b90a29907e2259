"""Interval of a difference over folds: every fold trains both policies anew.

The paired bootstrap of `dips compare` resamples users and holds the trained models fixed. This
interval also contains the variation of training and of the fold. It is the wider of the two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dips.evaluation.comparison import fold_of

Cell = tuple[int, int]
"""(every, size): update period and sketch size."""


class Interval(NamedTuple):
    """Mean difference of two policies over folds, and half of its 95 % interval."""

    mean: float
    half_width: float

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside of the interval."""
        return abs(self.mean) > self.half_width


def over_splits(
    rows: Iterable[Mapping[str, Any]], first: str, second: str, cell: Cell, metric: str
) -> Interval:
    """Return the t-interval (95 %) of test metric `first` minus `second` over their common folds.

    Repeats of one fold are averaged. Results of version 0.1 have seeds instead of folds.

    Args:
        rows: Rows of `rows.csv`: policy, size, every, fold or seed, and `test_METRIC`.
        first: Name of a policy.
        second: Name of the policy to compare with.
        cell: (every, size).
        metric: Name of the metric, e.g. `rmse`.

    Returns:
        The interval; the half width is infinite with fewer than two common folds.
    """
    values: dict[str, dict[int, list[float]]] = {first: {}, second: {}}
    for row in rows:
        if row["policy"] in values and (row["every"], row["size"]) == cell:
            values[row["policy"]].setdefault(fold_of(row), []).append(row[f"test_{metric}"])
    folds = sorted(values[first].keys() & values[second].keys())
    means = {name: {f: statistics.mean(own[f]) for f in folds} for name, own in values.items()}
    return t_interval([means[first][fold] - means[second][fold] for fold in folds])


def t_interval(differences: Sequence[float]) -> Interval:
    """Return the t-interval (95 %) of the mean; with fewer than two values it is infinite."""
    from scipy.stats import t  # a machine that trains only may lack it

    count = len(differences)
    if count < 2:
        return Interval(differences[0] if differences else math.nan, math.inf)
    error = statistics.stdev(differences) / math.sqrt(count)
    return Interval(statistics.mean(differences), float(t.ppf(0.975, count - 1)) * error)
