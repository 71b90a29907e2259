"""`dips doctor`: what is installed, what is missing, where data is looked for."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import dips
from dips.cli.screen import print_json
from dips.data import catalog

NEEDED = ("torch", "numpy", "safetensors", "polars", "typer", "rich", "matplotlib")


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
    versions, missing = {}, []
    for name in NEEDED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{name} (pip install {name})")
    import torch

    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; training uses cpu"
    return {
        "dips": dips.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        **versions,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": cuda,
        "DIPS_DATA": os.environ.get("DIPS_DATA", "not set"),
        "cache": str(catalog.cache()),
        "data here": [name for name in catalog.CATALOG if catalog.is_here(name)],
        "missing": missing,
    }
