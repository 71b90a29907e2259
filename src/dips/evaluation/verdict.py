"""Say in one sentence whether a policy is better than its baselines, as far as the data shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dips.evaluation.comparison import BEST_RULE, Cell, compare_pairs, user_sums
from dips.evaluation.equal_quality_size import equal_quality_size
from dips.evaluation.metrics import LOWER_IS_BETTER
from dips.evaluation.progressive import Scores
from dips.evaluation.significance import COMPLETE_FOLDS, is_significant

RESAMPLES = 2_000
"""Bootstrap resamples; fewer than in a comparison, as a run should end quickly."""
NAMED_CELLS = 3
"""Maximum number of cells that are listed by name."""
Row = Mapping[str, Any]


def compare_scores(first: Scores, second: Scores) -> list[dict[str, Any]]:
    """Compare two evaluations of the same users by a paired bootstrap.

    Returns:
        One row per metric: `diff` (first minus second), 95 % interval `low` to `high`, and `p`.
    """
    ids = [str(user) for user in range(len(first.count))]
    results = {
        Cell(str(index), 0, 0): [user_sums(scores, ids)]
        for index, scores in enumerate((first, second))
    }
    return compare_pairs(results, resamples=RESAMPLES)


def count_kept_policies(runs: Sequence[Row], policy: str) -> Counter[str]:
    """Count the kept policies in the runs of a policy: itself, or a better baseline."""
    return Counter(run.get("kept_policy", policy) for run in runs if run["policy"] == policy)


def comparison_verdict(
    summary: Sequence[Row],
    paired: Sequence[Row],
    metric: str,
    runs: Sequence[Row] = (),
    best_rules: Sequence[Row] = (),
) -> str:
    """Compare `learned` with `last` and with the best rule, in one sentence.

    Without `learned` the policy with the largest mean gain is compared. Without `last` the first
    policy is the reference. Where a baseline was kept in all runs of a policy, the sentence names
    the baseline. "Better" is decided by `is_significant`.

    Args:
        summary: Rows of `summarise`.
        paired: Rows of `compare_pairs`.
        metric: The metric to compare.
        runs: One row per run, with `policy` and `kept_policy`.
        best_rules: The rule that is best on validation, by size, period and fold.

    Returns:
        The sentence; empty for a single policy.
    """
    left_out = ("all", BEST_RULE)
    rows = [row for row in summary if row["metric"] == metric and row["policy"] not in left_out]
    names = list(dict.fromkeys(row["policy"] for row in rows))
    if len(names) < 2:
        return ""
    to = "last" if "last" in names else names[0]
    gains = {name: _gains(rows, paired, metric, name, to) for name in names if name != to}
    gains = {name: cells for name, cells in gains.items() if cells}
    if not gains:
        return ""
    best = max(gains, key=lambda name: _mean(gains[name]))
    of = "learned" if "learned" in gains else best
    kept = count_kept_policies(runs, of)
    named = of if kept[of] or not kept else " or ".join(kept)
    parts = [_describe_kept(kept, of)]
    ruled = _gains([*rows, *_best_rule_rows(summary, metric)], paired, metric, of, BEST_RULE)
    if named == to and not ruled:
        parts.append(f"keep {to}")
    elif named != to:
        curves = {named: _curve(rows, of), to: _curve(rows, to)}
        advice = _statement if ruled else _advice
        parts += [_equal(curves, metric, gains[of]), advice(gains[of], named, to)]
    if ruled:
        parts.append(_against_best_rule(ruled, named, best_rules))
    elif best not in (of, named) and _cells(gains[best], 1):
        parts.append(f"or use {best}, which {_better_cells(gains[best], to)}")
    parts.append(_few_folds(paired))
    return "; ".join(part for part in parts if part)


def _best_rule_rows(summary: Sequence[Row], metric: str) -> list[Row]:
    return [row for row in summary if row["metric"] == metric and row["policy"] == BEST_RULE]


def _against_best_rule(gains: Gains, of: str, best_rules: Sequence[Row]) -> str:
    """Compare a policy with the rule that is best on validation, and say which one to use."""
    names = ", ".join(dict.fromkeys(row["policy"] for row in best_rules))
    rule = "the best rule on validation" + (f" ({names})" if names else "")
    better, worse = _cells(gains, 1), _cells(gains, -1)
    also = f", and worse in {_many(worse, gains)}" if worse else ""
    if len(worse) == len(gains):
        return f"{of} is worse than {rule} in {_many(worse, gains)}: use that rule"
    if not better:
        where = f"any of {len(gains)} cells" if len(gains) > 1 else "the one cell"
        return f"{of} is not better than {rule} in {where}{also}: use that rule"
    said = f"{of} {_better_cells(gains, rule)}{also}: use {of}"
    return said if len(better) == len(gains) else f"{said} there, and else that rule"


def _few_folds(paired: Sequence[Row]) -> str:
    """Return how many folds were run, if they are fewer than five; empty if it is unknown."""
    counts = {len(row["folds"]) for row in paired if row.get("folds")}
    if not counts or min(counts) >= COMPLETE_FOLDS:
        return ""
    count = min(counts)
    return f"preliminary: {count} of {COMPLETE_FOLDS} folds"


def _describe_kept(kept: Counter[str], of: str) -> str:
    """Return 'frequent was kept in 2 of 3 runs of learned'; empty if no baseline was kept."""
    baselines = [f"{name} was kept in {count}" for name, count in kept.items() if name != of]
    return f"{', '.join(baselines)} of {kept.total()} runs of {of}" if baselines else ""


class Gain(NamedTuple):
    """Gain of one policy over another in a cell."""

    share: float
    """Relative to the other policy; above 0 is better."""
    sign: int
    """1 if significantly better, -1 if significantly worse, else 0."""


Gains = dict[tuple[int, int], Gain]
"""By size and period."""


def _gains(rows: Sequence[Row], paired: Sequence[Row], metric: str, of: str, to: str) -> Gains:
    base = _curve(rows, to)
    found: Gains = {}
    for row in paired:
        if row["metric"] != metric or {row["a"], row["b"]} != {of, to}:
            continue
        cell = (row["size"], row["every"])
        share = _gain(metric, (1 if row["a"] == of else -1) / base[cell] * row["diff"], 0.0)
        sign = (1 if share > 0 else -1) if is_significant(row) else 0
        found[cell] = Gain(share, sign)
    return found


def _mean(gains: Gains) -> float:
    return float(np.mean([gain.share for gain in gains.values()]))


def _cells(gains: Gains, sign: int) -> list[tuple[int, int]]:
    return [cell for cell, gain in gains.items() if gain.sign == sign]


Curve = dict[tuple[int, int], float]
"""Means by size and period."""


def _curve(rows: Sequence[Row], policy: str) -> Curve:
    return {(row["size"], row["every"]): row["mean"] for row in rows if row["policy"] == policy}


def _equal(curves: Mapping[str, Curve], metric: str, gains: Gains) -> str:
    """Return 'learned at K = 4 equals last at K = 5.6', at the middle size and the smallest period.

    Empty if the difference there is not significant or if the other policy has a single size.
    """
    (of, own), (to, other) = curves.items()
    every = min(period for _, period in own)
    sizes = sorted(size for size, period in own if period == every)
    tried = [size for size, period in other if period == every]
    size = sizes[len(sizes) // 2]
    if len(tried) < 2 or (size, every) not in gains or not gains[size, every].sign:
        return ""
    quality = [other[one, every] for one in tried]
    lower = metric in LOWER_IS_BETTER
    found = equal_quality_size(tried, quality, own[size, every], lower_is_better=lower)
    when = "" if every == 1 else f" (every {every})"
    mine, theirs = f"{of} at K = {size}", f"{to} at K = "
    if found.bound == "above":
        return f"{mine} is better than {theirs}{found.size:g}, the largest tried{when}"
    if found.bound == "below":
        return f"{mine} is worse than {theirs}{found.size:g}, the smallest tried{when}"
    return f"{mine} equals {theirs}{found.size:.2g}{when}"


def _statement(gains: Gains, of: str, to: str) -> str:
    """Return in which cells a policy is better or worse than another, without advice."""
    better, worse = _cells(gains, 1), _cells(gains, -1)
    if better:
        return f"{of} {_better_cells(gains, to)}" + (
            f", and worse in {_many(worse, gains)}" if worse else ""
        )
    if worse:
        return f"{to} is better than {of} in {_many(worse, gains)}, and worse in none"
    where = f"any of {len(gains)} cells" if len(gains) > 1 else "the one cell"
    return f"no significant difference between {of} and {to} in {where}"


def _advice(gains: Gains, of: str, to: str) -> str:
    """Return which policy to use in which cells, by the significant differences."""
    better, worse = _cells(gains, 1), _cells(gains, -1)
    if not better and not worse:
        where = f"any of {len(gains)} cells" if len(gains) > 1 else "the one cell"
        return f"no significant difference in {where}: keep {to}"
    if not better:
        return f"{to} is better than {of} in {_many(worse, gains)}, and worse in none: keep {to}"
    said = f"{of} {_better_cells(gains, to)}"
    if len(better) == len(gains):
        return f"{said}: use {of}; keep {to} if that gain is too small for you"
    rest = [cell for cell in gains if cell not in better]
    places = "in the others"
    if len(rest) <= NAMED_CELLS:
        places = "at " + ", ".join(_place(cell) for cell in rest)
    return f"{said}, significantly; keep {to} {places}"


def _better_cells(gains: Gains, to: str) -> str:
    """Return 'is better than last in 2 of 3 cells, by 1.0 to 1.1 %'."""
    better = _cells(gains, 1)
    shares = [gains[cell].share for cell in better]
    by = f"by {_percent(min(shares))}"
    if len(shares) > 1:
        by = f"by {100 * min(shares):.1f} to {_percent(max(shares))}"
    return f"is better than {to} in {_many(better, gains)}, {by}"


def _many(cells: Sequence[tuple[int, int]], gains: Gains) -> str:
    """Return a number of cells in words: '2 of 3 cells', 'all 3 cells', 'the one cell'."""
    if len(cells) < len(gains):
        return f"{len(cells)} of {len(gains)} cells"
    return f"all {len(gains)} cells" if len(gains) > 1 else "the one cell"


def _place(cell: tuple[int, int]) -> str:
    return f"K = {cell[0]}" + ("" if cell[1] == 1 else f" every {cell[1]}")


def _gain(metric: str, value: float, base: float) -> float:
    """Return the gain of a value over a base; above 0 is better for every metric."""
    return base - value if metric in LOWER_IS_BETTER else value - base


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 5e-4 else "less than 0.1 %"
