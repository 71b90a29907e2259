"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AllowPlugins = Annotated[
    bool,
    typer.Option(
        "--allow-plugins",
        help="Import the class of your own that the run names; its code runs. DIPS_ALLOW_PLUGINS=1 "
        "does the same.",
    ),
]
"""Option of commands that open a run."""
EscapeFormulas = Annotated[
    bool,
    typer.Option(
        "--escape-formulas",
        help="In CSV, put an apostrophe before texts that begin with = + - @ or a tab, which "
        "spreadsheets may run as formulas.",
    ),
]
"""Option of commands that write tables."""
