"""`learned` against the best static policy on implicit data, as tables in Markdown.

`figure.py` puts them into README. In a cell: Recall@20 / MRR@20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dips.report.results import Comparison

METRICS = ("recall@20", "mrr@20")
OURS = "learned"
Row = dict[str, Any]
Place = tuple[int, int]


def tables(
    parts: Sequence[tuple[str, Comparison]], header: Callable[[str, Sequence[Place]], list[str]]
) -> str:
    """A table for each data set, under its title."""
    return "\n\n".join("\n".join(table(title, part, header)) for title, part in parts)


def table(
    title: str, part: Comparison, header: Callable[[str, Sequence[Place]], list[str]]
) -> list[str]:
    """Means of all policies, and how far ours is ahead of the best of the others."""
    mean = {
        (row["policy"], row["every"], row["size"], row["metric"]): row["mean"]
        for row in part.summary
    }
    places = sorted({key[1:3] for key in mean})
    policies = list(dict.fromkeys(key[0] for key in mean))

    def cell(policy: str, place: Place) -> str:
        values = [mean.get((policy, *place, metric)) for metric in METRICS]
        return " / ".join("" if value is None else f"{value:.4f}" for value in values).strip(" /")

    lines = [_line(f"`{policy}`", [cell(policy, place) for place in places]) for policy in policies]
    ahead = [" / ".join(lead(part, mean, place, metric) for metric in METRICS) for place in places]
    return [*header(title, places), *lines, _line(f"`{OURS}` to the best", ahead)]


def lead(part: Comparison, mean: dict[Any, float], place: Place, metric: str) -> str:
    """Relative difference to the best other policy; bold where its interval excludes zero."""
    here = {key[0]: value for key, value in mean.items() if key[1:] == (*place, metric)}
    others = {name: value for name, value in here.items() if name != OURS}
    best = max(others, key=lambda name: others[name])
    pair = next(
        row for row in part.paired
        if {row["a"], row["b"]} == {best, OURS} and row["metric"] == metric
        and (row["every"], row["size"]) == place
    )  # fmt: skip
    text = f"{here[OURS] / others[best] - 1:+.1%}".replace("%", " %")
    return f"**{text}**" if pair["low"] * pair["high"] > 0 else text


def _line(head: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([head, *cells]) + " |"
