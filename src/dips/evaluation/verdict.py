"""One line for people: is a policy worth it? Says what the numbers say and not more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dips.evaluation.comparison import Cell, UserSums, compare_pairs
from dips.evaluation.equivalence import equal_size
from dips.evaluation.metrics import LOWER_IS_BETTER, headline
from dips.evaluation.progressive import Scores

RESAMPLES = 2_000
"""Fewer than in a comparison: one line at the end of a run should not take longer than the run."""
LEVEL = 0.05
"""Above it a p-value speaks of chance."""
FEW = 3
"""So many cells are named one by one."""
Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Entrant:
    """A policy that was trained on one split: how it did on validation and, if scored, on test."""

    name: str
    valid: Mapping[str, float]
    test: Scores | None = None


def of_run(
    own: Entrant | None, baselines: Sequence[Entrant], size: int, *, taught: bool = True
) -> str:
    """Is what was learned better than the rivals that were trained beside it?

    `own` is None where it diverged; `taught` is False where its best epoch is from before the
    policy began to learn. Without a rival there is nothing to say.
    """
    if not baselines:
        return ""
    metric = headline(baselines[0].valid)
    baseline = max(baselines, key=lambda one: _gain(metric, one.valid[metric], 0.0))
    simple = f"{baseline.name}-{size}"
    if own is None:
        return f"{baseline.name} stays: what was learned diverged; use {simple}"
    gain = _relative(metric, own.valid[metric], baseline.valid[metric])
    values = f"{metric} {own.valid[metric]:.4f} against {baseline.valid[metric]:.4f}"
    if gain < 0:
        return (
            f"{baseline.name} stays: what was learned is {_percent(-gain)} worse on validation "
            f"({values}); use {simple}"
        )
    if gain == 0 or not taught:
        same = (
            f": its policy keeps what {baseline.name} keeps" if own.valid == baseline.valid else ""
        )
        return f"nothing that was learned is better than {simple} on validation{same}; use {simple}"
    return f"{own.name} beats {simple} on validation by {_percent(gain)} ({values}); " + _on_test(
        own, baseline, metric, simple
    )


def _on_test(own: Entrant, baseline: Entrant, metric: str, simple: str) -> str:
    """What the test users of this split say to a choice that validation made."""
    found = _paired(own, baseline, metric)
    if found is None:
        return "'dips compare' tells whether that holds on test, over several splits"
    gain, low, high = found
    interval = f"95 %: {100 * low:+.1f} to {100 * high:+.1f} %"
    if low > 0:
        return f"on test by {_percent(gain)} ({interval}): use {own.name}"
    if high < 0:
        return f"but on test it is {_percent(-gain)} worse ({interval}): keep {simple}"
    return (
        f"on test by {100 * gain:+.1f} % ({interval}), which may be chance: keep {simple} "
        "unless 'dips compare' over several splits says otherwise"
    )


def _paired(own: Entrant, baseline: Entrant, metric: str) -> tuple[float, float, float] | None:
    """The relative gain on test with its interval over users; None where it is not known."""
    if own.test is None or baseline.test is None:
        return None
    base = baseline.test.metrics.get(metric)
    for row in compare_scores(own.test, baseline.test):
        if row["metric"] == metric and base:
            values = sorted(_gain(metric, row[end], 0.0) / base for end in ("low", "high"))
            return _gain(metric, row["diff"], 0.0) / base, values[0], values[1]
    return None


def compare_scores(first: Scores, second: Scores) -> list[dict[str, Any]]:
    """First minus second on the same users of one split, by metric, with intervals."""
    results = {Cell(str(place), 0, 0): [_sums(one)] for place, one in enumerate((first, second))}
    return compare_pairs(results, resamples=RESAMPLES)


def _sums(scores: Scores) -> UserSums:
    users = [str(user) for user in range(len(scores.count))]
    sums = {name: np.asarray(total) for name, total in scores.sums.items()}
    return UserSums(users, np.asarray(scores.count), sums)


def beyond_chance(pair: Row) -> bool:
    """Whether a paired difference is one: its interval and its corrected p-value must say so."""
    return bool((pair["low"] > 0 or pair["high"] < 0) and pair["p"] < LEVEL)


def choosers(runs: Sequence[Row], policy: str) -> Counter[str]:
    """Who chose in the runs of a policy: itself, or a rival that was better on validation."""
    return Counter(
        run.get("kept_policy", policy)  # what older results do not say
        for run in runs
        if run["policy"] == policy
    )


def of_table(
    summary: Sequence[Row], paired: Sequence[Row], metric: str, runs: Sequence[Row] = ()
) -> str:
    """Is the learned policy of a comparison, or its best one, worth more than last-K?

    With neither, the first policy takes the place of last-K. Empty where there is one policy.
    Where in all `runs` a rival chose in its place, the rival gets the credit.
    """
    rows = [row for row in summary if row["metric"] == metric and row["policy"] != "all"]
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
    chose = choosers(runs, of)
    named = of if chose[of] or not chose else " or ".join(chose)
    parts = [_chose(chose, of)]
    if named == to:
        parts.append(f"keep {to}")
    else:
        curves = {named: _curve(rows, of), to: _curve(rows, to)}
        parts += [_equal(curves, metric, gains[of]), _advice(gains[of], named, to)]
    if best not in (of, named) and _cells(gains[best], 1):
        parts.append(f"or take {best}, which {_wins(gains[best], to)}")
    return "; ".join(part for part in parts if part)


def _chose(chose: Counter[str], of: str) -> str:
    """'frequent chose in 2 of 3 runs of learned'; empty where no rival did."""
    told = [f"{name} chose in {count}" for name, count in chose.items() if name != of]
    return f"{', '.join(told)} of {chose.total()} runs of {of}" if told else ""


class Gain(NamedTuple):
    """How much better one policy is than another in a cell."""

    share: float
    """Relative to the other; above 0 is better."""
    side: int
    """1 where it is better, -1 where it is worse, 0 where that may be chance."""


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
        side = (1 if share > 0 else -1) if beyond_chance(row) else 0
        found[cell] = Gain(share, side)
    return found


def _mean(gains: Gains) -> float:
    return float(np.mean([gain.share for gain in gains.values()]))


def _cells(gains: Gains, side: int) -> list[tuple[int, int]]:
    return [cell for cell, gain in gains.items() if gain.side == side]


Curve = dict[tuple[int, int], float]
"""Means by size and period."""


def _curve(rows: Sequence[Row], policy: str) -> Curve:
    return {(row["size"], row["every"]): row["mean"] for row in rows if row["policy"] == policy}


def _equal(curves: Mapping[str, Curve], metric: str, gains: Gains) -> str:
    """'learned at 4 equals last at 5.6' at the middle size and the first period, of two policies.

    Empty where that is not known: the difference there may be chance, or there are too few sizes.
    """
    (of, own), (to, other) = curves.items()
    every = min(period for _, period in own)
    sizes = sorted(size for size, period in own if period == every)
    tried = [size for size, period in other if period == every]
    size = sizes[len(sizes) // 2]
    if len(tried) < 2 or (size, every) not in gains or not gains[size, every].side:
        return ""
    quality = [other[one, every] for one in tried]
    lower = metric in LOWER_IS_BETTER
    found = equal_size(tried, quality, own[size, every], lower_is_better=lower)
    when = "" if every == 1 else f" (every {every})"
    if found.bound == "above":
        return f"{of} at {size} is better than {to} at {found.size:g}, the largest tried{when}"
    if found.bound == "below":
        return f"{of} at {size} is worse than {to} at {found.size:g}, the smallest tried{when}"
    return f"{of} at {size} equals {to} at {found.size:.2g}{when}"


def _advice(gains: Gains, of: str, to: str) -> str:
    """What to use where, by the cells whose differences are beyond chance."""
    won, lost = _cells(gains, 1), _cells(gains, -1)
    if not won and not lost:
        where = f"any of {len(gains)} cells" if len(gains) > 1 else "the one cell"
        return f"no difference beyond chance in {where}: keep {to}"
    if not won:
        return f"{to} beats {of} in {_many(lost, gains)}, and {of} beats it in none: keep {to}"
    said = f"{of} {_wins(gains, to)}"
    if len(won) == len(gains):
        return f"{said}: use {of}; keep {to} if that is too little"
    rest = [cell for cell in gains if cell not in won]
    places = ", ".join(_place(cell) for cell in rest) if len(rest) <= FEW else "the others"
    return f"{said}, beyond chance; keep {to} in {places}"


def _wins(gains: Gains, to: str) -> str:
    """'beats last in 2 of 3 cells, by 1.0 to 1.1 %'."""
    won = _cells(gains, 1)
    shares = [gains[cell].share for cell in won]
    by = f"by {_percent(min(shares))}"
    if len(shares) > 1:
        by = f"by {100 * min(shares):.1f} to {_percent(max(shares))}"
    return f"beats {to} in {_many(won, gains)}, {by}"


def _many(cells: Sequence[tuple[int, int]], gains: Gains) -> str:
    """So many of the cells, in words."""
    if len(cells) < len(gains):
        return f"{len(cells)} of {len(gains)} cells"
    return f"all {len(gains)} cells" if len(gains) > 1 else "the one cell"


def _place(cell: tuple[int, int]) -> str:
    return f"K = {cell[0]}" + ("" if cell[1] == 1 else f" every {cell[1]}")


def _gain(metric: str, value: float, base: float) -> float:
    """How much better a value is: above 0 is better, whatever the metric."""
    return base - value if metric in LOWER_IS_BETTER else value - base


def _relative(metric: str, value: float, base: float) -> float:
    return _gain(metric, value, base) / base if base else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 5e-4 else "less than 0.1 %"
