"""`dips doctor`: print installed and missing packages, and the directories of data."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dips.cli.origin import NEEDED, environment, installed
from dips.cli.screen import print_json
from dips.data import catalog


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Print the environment and what is missing."""
    facts = _facts()
    if as_json:
        print_json(facts)
    else:
        table = Table("what", "found", title="dips doctor", title_justify="left")
        for name, value in facts.items():
            table.add_row(
                name, ", ".join(value) or "nothing" if isinstance(value, list) else str(value)
            )
        Console().print(table)
    if facts["missing"]:
        raise typer.Exit(2)


def _facts() -> dict[str, Any]:
    return {
        **environment(),
        "DIPS_DATA": os.environ.get("DIPS_DATA", "not set"),
        "cache": str(catalog.cache()),
        "data here": [name for name in catalog.CATALOG if catalog.is_here(name)],
        "missing": [f"{name} (pip install {name})" for name in NEEDED if installed(name) is None],
    }
