"""Compare `learned` with the best static policy on implicit data, as tables in Markdown.

`figure.py` writes them into docs/results.md. In a cell: Recall@20 / MRR@20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from split_interval import Cell, over_splits

from dips.report.results import Comparison

METRICS = ("recall@20", "mrr@20")
OURS = "learned"


def tables(
    parts: Sequence[tuple[str, Comparison]], header: Callable[[str, Sequence[Cell]], list[str]]
) -> str:
    """Return a table for each data set; its title is the first column's head."""
    return "\n\n".join("\n".join(table(title, part, header)) for title, part in parts)


def table(
    title: str, part: Comparison, header: Callable[[str, Sequence[Cell]], list[str]]
) -> list[str]:
    """Return the means of all policies, and the relative lead of `learned` over the best other."""
    mean = {
        (row["policy"], row["every"], row["size"], row["metric"]): row["mean"]
        for row in part.summary
    }
    cells = sorted({key[1:3] for key in mean})
    policies = list(dict.fromkeys(key[0] for key in mean))

    def entry(policy: str, cell: Cell) -> str:
        values = [mean.get((policy, *cell, metric)) for metric in METRICS]
        return " / ".join("" if value is None else f"{value:.4f}" for value in values).strip(" /")

    lines = [_line(f"`{policy}`", [entry(policy, cell) for cell in cells]) for policy in policies]
    leads = [" / ".join(lead(part, mean, cell, metric) for metric in METRICS) for cell in cells]
    return [*header(title, cells), *lines, _line(f"`{OURS}` to the best", leads)]


def lead(part: Comparison, mean: dict[Any, float], cell: Cell, metric: str) -> str:
    """Return the relative difference to the best other policy; bold where it excludes zero.

    The interval is the t-interval over splits (`split_interval`).
    """
    here = {key[0]: value for key, value in mean.items() if key[1:] == (*cell, metric)}
    others = {name: value for name, value in here.items() if name != OURS}
    best = max(others, key=lambda name: others[name])
    text = f"{here[OURS] / others[best] - 1:+.1%}".replace("%", " %")
    significant = over_splits(part.rows, OURS, best, cell, metric).excludes_zero
    return f"**{text}**" if significant else text


def _line(head: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([head, *cells]) + " |"
