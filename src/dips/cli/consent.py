"""The option `--allow-plugins` of all commands that open a run."""

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
