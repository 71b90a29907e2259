"""The stages of `dips paper`: a table of states and reasons, with a link to the story."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dips.report.markup import Cell, Markup, concatenate, format_seconds, paragraph, table

PAGES = {"story": "story.html"}
"""Stages that write a page of their own next to the report."""


def stages_table(document: Mapping[str, Any]) -> Markup:
    """Return a table of the stages in a paper.json."""
    stages = document["stages"]
    scales = {name: entry.get("scale", document.get("scale", "")) for name, entry in stages.items()}
    rows: list[list[Cell]] = [
        [name, entry["state"], _time(entry["seconds"]), _remark(name, entry)]
        for name, entry in stages.items()
    ]
    head = ["stage", "state", "time", ""]
    items = f"Where items are predicted: {document['items']}."
    if len(set(scales.values())) == 1:
        text = f"{_capital(next(iter(scales.values())))}. {items}"
    else:  # stages were added with other settings
        text, head = items, [*head, "scale"]
        rows = [[*row, scales[name]] for name, row in zip(scales, rows, strict=True)]
    caption = f"Stages of dips paper {document['data']}"
    return concatenate(paragraph(text), table(head, rows, caption))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _time(value: float) -> str:
    """Return a duration, empty for a stage that did not run."""
    return format_seconds(value) if value else ""


def _remark(name: str, entry: Mapping[str, Any]) -> Cell:
    if entry["state"] == "done" and name in PAGES:
        return Markup(f'<a href="{PAGES[name]}">{PAGES[name]}</a>, next to this page')
    return str(entry["why"])
