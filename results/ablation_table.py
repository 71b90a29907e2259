"""The ablations of all data sets as a Markdown table; `figure.py` writes it to docs/ablations.md.

A cell has the difference of the test metric and half its 95 % interval, in bold if the interval
excludes zero. The first row has the metric itself.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

Row = dict[str, str]
Place = tuple[str, str, str]
"""Theme, variant, and what it is compared with."""


def ablation_table(files: Mapping[str, Path]) -> str:
    """Return a Markdown table: one column per existing file, one row per variant."""
    columns = {title: read(path) for title, path in files.items() if path.exists()}
    places = dict.fromkeys(place for rows in columns.values() for place in rows)
    themes = list(dict.fromkeys(theme for theme, _, _ in places))
    lines = [
        [theme, variant + (f", against {other}" if other not in ("", "learned") else "")]
        + [cell(rows.get((theme, variant, other))) for rows in columns.values()]
        for theme, variant, other in sorted(places, key=lambda place: themes.index(place[0]))
    ]
    head = ["theme", "variant", *columns]
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, lines)])


def read(path: Path) -> dict[Place, Row]:
    """Read the rows of ablations.csv."""
    with path.open() as file:
        return {(row["theme"], row["variant"], row["against"]): row for row in csv.DictReader(file)}


def cell(row: Row | None) -> str:
    """Return the difference of one variant on one data set."""
    if row is None or not row["diff"]:
        return ""
    if not row["against"]:
        return f"{float(row['test']):.4f}"
    low, high = float(row["low"]), float(row["high"])
    text = f"{float(row['diff']):+.4f} ± {(high - low) / 2:.4f}"
    return f"**{text}**" if low * high > 0 else text


def _line(cells: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
