"""What became of the stages of `dips paper`: a table with reasons, and the way to the story."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dips.report.markup import Cell, Markup, paragraph, seconds, table

PAGES = {"story": "story.html"}
"""Stages that leave a page of their own, beside the report."""


def stages_table(told: Mapping[str, Any]) -> str:
    """What paper.json says."""
    rows = [
        [name, entry["state"], seconds(entry["seconds"]), _remark(name, entry)]
        for name, entry in told["stages"].items()
    ]
    head = ["stage", "state", "time", ""]
    said = f"{told['scale']}. Where items are predicted: {told['items']}."
    said = said[0].upper() + said[1:]
    return paragraph(said) + table(head, rows, f"Stages of dips paper {told['data']}")


def _remark(name: str, entry: Mapping[str, Any]) -> Cell:
    if entry["state"] == "done" and name in PAGES:
        return Markup(f'<a href="{PAGES[name]}">{PAGES[name]}</a>, beside this page')
    return str(entry["why"])
