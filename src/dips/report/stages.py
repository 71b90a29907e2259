"""What became of the stages of `dips paper`: a table with reasons, and the way to the story."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dips.report.markup import Cell, Markup, paragraph, seconds, table

PAGES = {"story": "story.html"}
"""Stages that leave a page of their own, beside the report."""


def stages_table(told: Mapping[str, Any]) -> str:
    """What paper.json says."""
    stages = told["stages"]
    scales = {name: entry.get("scale", told.get("scale", "")) for name, entry in stages.items()}
    rows: list[list[Cell]] = [
        [name, entry["state"], _time(entry["seconds"]), _remark(name, entry)]
        for name, entry in stages.items()
    ]
    head = ["stage", "state", "time", ""]
    items = f"Where items are predicted: {told['items']}."
    if len(set(scales.values())) == 1:
        said = f"{_capital(next(iter(scales.values())))}. {items}"
    else:  # added to with other settings: a sentence for all would be wrong for some
        said, head = items, [*head, "scale"]
        rows = [[*row, scales[name]] for name, row in zip(scales, rows, strict=True)]
    return paragraph(said) + table(head, rows, f"Stages of dips paper {told['data']}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _time(value: float) -> str:
    """Nothing for a stage that did not run."""
    return seconds(value) if value else ""


def _remark(name: str, entry: Mapping[str, Any]) -> Cell:
    if entry["state"] == "done" and name in PAGES:
        return Markup(f'<a href="{PAGES[name]}">{PAGES[name]}</a>, beside this page')
    return str(entry["why"])
