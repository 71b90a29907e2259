"""Decide whether a paired difference between two policies counts: one rule for all tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dips.evaluation.metrics import LOWER_IS_BETTER

LEVEL = 0.05
"""Significance level of p-values and intervals."""
COMPLETE_FOLDS = 5
"""Folds in which every user is a test user once."""
T_QUANTILE = {5: 2.776445105197793}
"""0.975 quantile of Student's t with one degree of freedom less than the number of folds."""
Row = Mapping[str, Any]


def is_significant(pair: Row) -> bool:
    """Return whether one policy of a paired row is better than the other.

    Tables, reports and verdicts call a policy better if and only if all of this holds:

    1. The 95 % interval over users excludes zero.
    2. The p-value after Holm's correction over the whole table is below 0.05.
    3. All folds agree in the sign of the difference.
    4. With all five folds: the 95 % t-interval over the folds' differences excludes zero.

    The sign of `diff` says which policy is better. With fewer than five folds there is no fourth
    condition. The result is then preliminary: `folds_in_words` says so.

    Args:
        pair: A row of `compare_pairs`. Rows of version 0.1 have no `folds`; conditions 3 and 4 are
            then left out.
    """
    over_users = (pair["low"] > 0 or pair["high"] < 0) and pair["p"] < LEVEL
    folds = pair.get("folds")
    if not over_users or not folds:
        return bool(over_users)
    return agreeing_folds(pair) == len(folds) and t_interval_excludes_zero(folds)


def agreeing_folds(pair: Row) -> int:
    """Return the number of folds in which the difference has the sign of the pooled difference."""
    return sum(
        math.copysign(1, one) == math.copysign(1, pair["diff"]) for one in pair["folds"] if one
    )


def t_interval_excludes_zero(differences: Sequence[float]) -> bool:
    """Return whether the 95 % t-interval of the mean excludes zero; true unless there are five.

    The interval contains the noise of training, which the interval over users holds fixed.
    """
    if len(differences) != COMPLETE_FOLDS:
        return True
    error = float(np.std(differences, ddof=1)) / math.sqrt(COMPLETE_FOLDS)
    return abs(float(np.mean(differences))) > T_QUANTILE[COMPLETE_FOLDS] * error


def folds_in_words(pair: Row) -> str:
    """Return '4 of 5 folds': in how many folds the difference has the sign of the pooled one."""
    count = len(pair["folds"])
    return f"{agreeing_folds(pair)} of {count} fold{'' if count == 1 else 's'}"


def best_policies(
    summary: Sequence[Row], paired: Sequence[Row], metric: str, size: int, every: int
) -> set[str]:
    """Return the policy with the best mean of a cell, and those not significantly different.

    `all` has no limit on its size, and does not compete.

    Args:
        summary: Rows of `summarise`.
        paired: Rows of `compare_pairs`. Policies without a paired row are left out.
        metric: The metric to compare.
        size: Sketch size.
        every: Refresh period.
    """
    place = (metric, size, every)
    means = {
        row["policy"]: row["mean"]
        for row in summary
        if (row["metric"], row["size"], row["every"]) == place and row["policy"] != "all"
    }
    if not means:
        return set()
    best = (min if metric in LOWER_IS_BETTER else max)(means, key=lambda name: means[name])
    similar = {
        next(iter({row["a"], row["b"]} - {best}))
        for row in paired
        if (row["metric"], row["size"], row["every"]) == place
        and best in (row["a"], row["b"])
        and not is_significant(row)
    }
    equal = {name for name, mean in means.items() if mean == means[best]}
    return equal | (similar & means.keys())
