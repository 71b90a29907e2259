"""The table of a comparison over folds: means, and differences to the best rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from split_interval import Cell, t_interval

from dips.evaluation.comparison import BEST_RULE
from dips.evaluation.metrics import LOWER_IS_BETTER
from dips.evaluation.significance import agreeing_folds, is_significant
from dips.report.results import Comparison

Row = dict[str, Any]


def fold_table(part: Comparison, metric: str, focus: Sequence[str]) -> str:
    """Return a Markdown table: one row per policy, one column per cell, best of a column bold.

    Below stands the difference of each policy of `focus` to the rule that is best on validation:
    mean and t-interval over the folds, and in how many folds it has that sign. Bold: "better" or
    "worse" by the rule of docs/protocol.md. With one split: the interval over its users, not bold.

    Args:
        part: The comparison.
        metric: The metric of the table.
        focus: Policies that are compared with the best rule.
    """
    rows = [row for row in part.summary if row["metric"] == metric]
    columns = sorted({(row["every"], row["size"]) for row in rows})
    mean = {(row["policy"], row["every"], row["size"]): row["mean"] for row in rows}
    names = list(dict.fromkeys(row["policy"] for row in rows if row["policy"] != BEST_RULE))
    names.append(BEST_RULE)
    choose = min if metric in LOWER_IS_BETTER else max
    limited = [key for key in mean if key[0] not in ("all", BEST_RULE)]
    best = {
        cell: choose((mean[key] for key in limited if key[1:] == cell), default=None)
        for cell in columns
    }

    def entry(policy: str, cell: Cell) -> str:
        value = mean.get((policy, *cell))
        if value is None:
            return ""
        return f"**{value:.4f}**" if value == best[cell] and policy != BEST_RULE else f"{value:.4f}"

    heads = [f"K={size}" + ("" if every == 1 else f", every {every}") for every, size in columns]
    lines = ["| policy | " + " | ".join(heads) + " |", "|" + "---|" * (len(heads) + 1)]
    for name in names:
        title = "best rule on validation" if name == BEST_RULE else f"`{name}`"
        lines.append(f"| {title} | " + " | ".join(entry(name, cell) for cell in columns) + " |")
    for name in focus:
        texts = (_difference(part.paired, name, cell, metric) for cell in columns)
        lines.append(f"| `{name}` less best rule | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _difference(paired: Sequence[Row], policy: str, cell: Cell, metric: str) -> str:
    for row in paired:
        same = (row["every"], row["size"], row["metric"]) == (*cell, metric)
        if same and {row["a"], row["b"]} == {policy, BEST_RULE}:
            sign = 1 if row["a"] == policy else -1
            if len(row["folds"]) == 1:  # one split: there is an interval over users only
                low, high = sorted((sign * row["low"], sign * row["high"]))
                return f"{sign * row['diff']:+.4f} [{low:+.4f}, {high:+.4f}]"
            value, half = t_interval([sign * one for one in row["folds"]])
            text = f"{value:+.4f} ± {half:.4f}, {agreeing_folds(row)} of {len(row['folds'])} folds"
            return f"**{text}**" if is_significant(row) else text
    return ""
