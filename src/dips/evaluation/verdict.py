"""One line for people: is a policy worth it? Says what the numbers say and not more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dips.evaluation.comparison import Cell, UserSums, compare_pairs
from dips.evaluation.equivalence import equal_size
from dips.evaluation.metrics import LOWER_IS_BETTER, headline
from dips.evaluation.progressive import Scores

RESAMPLES = 2_000
"""Fewer than in a comparison: one line at the end of a run should not take longer than the run."""
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
    own: Entrant | None, rivals: Sequence[Entrant], size: int, *, taught: bool = True
) -> str:
    """Is what was learned better than the rivals that were trained beside it?

    `own` is None where it diverged; `taught` is False where its best epoch is from before the
    policy began to learn. Without a rival there is nothing to say.
    """
    if not rivals:
        return ""
    metric = headline(rivals[0].valid)
    rival = max(rivals, key=lambda one: _gain(metric, one.valid[metric], 0.0))
    simple = f"{rival.name}-{size}"
    if own is None:
        return f"{rival.name} stays: what was learned diverged; use {simple}"
    gain = _relative(metric, own.valid[metric], rival.valid[metric])
    values = f"{metric} {own.valid[metric]:.4f} against {rival.valid[metric]:.4f}"
    if gain < 0:
        return (
            f"{rival.name} stays: what was learned is {_percent(-gain)} worse on validation "
            f"({values}); use {simple}"
        )
    if gain == 0 or not taught:
        return f"nothing that was learned is better than {simple} on validation; use {simple}"
    return f"{own.name} beats {simple} on validation by {_percent(gain)} ({values}); " + _on_test(
        own, rival, metric, simple
    )


def _on_test(own: Entrant, rival: Entrant, metric: str, simple: str) -> str:
    """What the test users of this split say to a choice that validation made."""
    found = _paired(own, rival, metric)
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


def _paired(own: Entrant, rival: Entrant, metric: str) -> tuple[float, float, float] | None:
    """The relative gain on test with its interval over users; None where it is not known."""
    if own.test is None or rival.test is None:
        return None
    results = {
        Cell(f"{place}", 0, 0): [_sums(scores)]
        for place, scores in enumerate((own.test, rival.test))
    }
    base = rival.test.metrics.get(metric)
    for row in compare_pairs(results, resamples=RESAMPLES):
        if row["metric"] == metric and base:
            values = sorted(_gain(metric, row[end], 0.0) / base for end in ("low", "high"))
            return _gain(metric, row["diff"], 0.0) / base, values[0], values[1]
    return None


def _sums(scores: Scores) -> UserSums:
    users = [str(user) for user in range(len(scores.count))]
    sums = {name: np.asarray(total) for name, total in scores.sums.items()}
    return UserSums(users, np.asarray(scores.count), sums)


def of_table(summary: Sequence[Row], paired: Sequence[Row], metric: str) -> str:
    """Is the learned policy of a comparison, or its best one, worth more than last-K?

    With neither, the first policy takes the place of last-K. Empty where there is one policy.
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
    best = max(
        gains, key=lambda name: float(np.mean([gain for gain, _, _ in gains[name].values()]))
    )
    of = "learned" if "learned" in gains else best
    parts = [_equal(rows, metric, of, to, gains[of]), _advice(gains[of], of, to)]
    return "; ".join(part for part in parts if part)


Gains = dict[tuple[int, int], tuple[float, float, float]]
"""By size and period: the relative gain, and the ends of its interval."""


def _gains(rows: Sequence[Row], paired: Sequence[Row], metric: str, of: str, to: str) -> Gains:
    base = {(row["size"], row["every"]): row["mean"] for row in rows if row["policy"] == to}
    found: Gains = {}
    for row in paired:
        if row["metric"] != metric or {row["a"], row["b"]} != {of, to}:
            continue
        cell = (row["size"], row["every"])
        sign = (1 if row["a"] == of else -1) / base[cell]
        low, high = sorted(_gain(metric, sign * row[end], 0.0) for end in ("low", "high"))
        found[cell] = (_gain(metric, sign * row["diff"], 0.0), low, high)
    return found


def _equal(rows: Sequence[Row], metric: str, of: str, to: str, gains: Gains) -> str:
    """'learned at 4 equals last at 5.6' at the middle size and the first period.

    Empty where that is not known: the difference there may be chance, or there are too few sizes.
    """
    every = min(row["every"] for row in rows if row["policy"] == of)
    curves = {
        name: {r["size"]: r["mean"] for r in rows if r["policy"] == name and r["every"] == every}
        for name in (of, to)
    }
    if len(curves[to]) < 2:
        return ""
    size = sorted(curves[of])[len(curves[of]) // 2]
    _, least, most = gains.get((size, every), (0.0, 0.0, 0.0))
    if least <= 0 <= most:
        return ""
    sizes, quality = zip(*curves[to].items(), strict=True)
    lower = metric in LOWER_IS_BETTER
    found = equal_size(sizes, quality, curves[of][size], lower_is_better=lower)
    when = "" if every == 1 else f" (every {every})"
    if found.bound == "above":
        return f"{of} at {size} is better than {to} at {found.size:g}, the largest tried{when}"
    if found.bound == "below":
        return f"{of} at {size} is worse than {to} at {found.size:g}, the smallest tried{when}"
    return f"{of} at {size} equals {to} at {found.size:.2g}{when}"


def _advice(gains: Gains, of: str, to: str) -> str:
    """What to use where, by the cells whose intervals exclude zero."""
    won = [cell for cell, (_, low, _) in gains.items() if low > 0]
    lost = [cell for cell, (_, _, high) in gains.items() if high < 0]
    many = f"all {len(gains)} cells" if len(gains) > 1 else "the one cell"
    if not won and not lost:
        where = f"any of {len(gains)} cells" if len(gains) > 1 else many
        return f"no difference beyond chance in {where}: keep {to}"
    if not won:
        where = many if len(lost) == len(gains) else f"{len(lost)} of {len(gains)} cells"
        return f"{to} beats {of} in {where}, and is beaten in none: keep {to}"
    shares = [gains[cell][0] for cell in won]
    by = f"by {_percent(min(shares))}"
    if len(shares) > 1:
        by = f"by {100 * min(shares):.1f} to {_percent(max(shares))}"
    if len(won) == len(gains):
        return f"{of} beats {to} in {many}, {by}: use {of}; keep {to} if that is too little"
    rest = [cell for cell in gains if cell not in won]
    places = ", ".join(_place(cell) for cell in rest) if len(rest) <= FEW else "the others"
    said = f"{of} beats {to} in {len(won)} of {len(gains)} cells, {by}"
    return f"{said}, beyond chance; keep {to} in {places}"


def _place(cell: tuple[int, int]) -> str:
    return f"K = {cell[0]}" + ("" if cell[1] == 1 else f" every {cell[1]}")


def _gain(metric: str, value: float, base: float) -> float:
    """How much better a value is: above 0 is better, whatever the metric."""
    return base - value if metric in LOWER_IS_BETTER else value - base


def _relative(metric: str, value: float, base: float) -> float:
    return _gain(metric, value, base) / base if base else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 5e-4 else "less than 0.1 %"
