"""`dips doctor`: print installed and missing packages, data directories and available data."""

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
    as_json: Annotated[bool, typer.Option("--json", help="Print only one JSON object.")] = False,
) -> None:
    """Print the environment, the available data sets and the missing packages.

    Exits with 2 if a package is missing.
    """
    facts = _facts()
    if as_json:
        print_json(facts)
    else:
        table = Table("what", "found", title="dips doctor", title_justify="left")
        for name, value in facts.items():
            label = "available data" if name == "data here" else name
            table.add_row(
                label, ", ".join(value) or "nothing" if isinstance(value, list) else str(value)
            )
        Console().print(table)
    if facts["missing"]:
        raise typer.Exit(2)


def _facts() -> dict[str, Any]:
    """Return the environment, the data directories, and available and missing things, by name."""
    return {
        **environment(),
        "DIPS_DATA": os.environ.get("DIPS_DATA", "not set"),
        "cache": str(catalog.cache()),
        "data here": [name for name in catalog.CATALOG if catalog.is_available(name)],
        "missing": [f"{name} (pip install {name})" for name in NEEDED if installed(name) is None],
    }
