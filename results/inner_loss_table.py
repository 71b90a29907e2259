"""The table of inner losses: means over splits, and differences to the softmax over all items."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from pathlib import Path

from split_interval import t_interval

INNER_LOSSES = ("softmax", "linearised", "squared", "squared-solved")
METRICS = ("recall@20", "mrr@20")
Cell = tuple[str, str, str]
"""Policy, sketch size and inner loss."""


def inner_loss_table(folders: Mapping[str, Path]) -> str:
    """Return a Markdown table: one row per data set, policy and size, one column per inner loss.

    Args:
        folders: Folders of `inner_losses.py`, by the name of their data.
    """
    lines = ["| data | policy | K | " + " | ".join(INNER_LOSSES) + " |"]
    lines.append("|" + "---|" * (3 + len(INNER_LOSSES)))
    for title, folder in folders.items():
        found = _by_split(folder / "rows.csv")
        for policy, size in dict.fromkeys(cell[:2] for cell in found):
            texts = [_text(found, (policy, size, name)) for name in INNER_LOSSES]
            lines.append(f"| {title} | `{policy}` | {size} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _by_split(path: Path) -> dict[Cell, dict[str, list[float]]]:
    """Return the test metrics of each cell, by split."""
    found: dict[Cell, dict[str, list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            cell = (row["policy"], row["size"], row["inner_loss"])
            values = [float(row[f"test_{metric}"]) for metric in METRICS]
            found.setdefault(cell, {})[row["seed"]] = values
    return found


def _text(found: Mapping[Cell, Mapping[str, list[float]]], cell: Cell) -> str:
    """Return the means of a cell; and, but for softmax, differences in percent with intervals."""
    own, base = found.get(cell, {}), found.get((*cell[:2], "softmax"), {})
    if not own:
        return ""
    means = " / ".join(
        f"{statistics.mean(values):.4f}" for values in zip(*own.values(), strict=True)
    )
    seeds = sorted(own.keys() & base.keys())
    if cell[2] == "softmax" or len(seeds) < 2:
        return means
    changes = []
    for index in range(len(METRICS)):
        ratios = [100 * (own[seed][index] / base[seed][index] - 1) for seed in seeds]
        mean, half = t_interval(ratios)
        text = f"{mean:+.1f} ± {half:.1f} %"
        changes.append(f"**{text}**" if abs(mean) > half else text)
    return f"{means} ({' / '.join(changes)})"
