"""`dips report`: parse, call dips.api, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips import api
from dips.errors import ConfigError


def report(
    results: Annotated[
        list[Path],
        typer.Argument(help="What dips compare, transfer, session, gradients or train wrote."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write (.html).")],
) -> None:
    """Put results on one page that needs nothing else: no network, no script.

    Tables beside the paper's figures, quality by sketch size and by bytes
    per user, sizes at equal quality, transfer, sessions, gradients, training
    curves, timings, settings, environment and commands: whatever is there.
    A directory of such directories will do.

    Example: dips report results runs/dips-4 --out report.html
    """
    if out.suffix != ".html":
        raise ConfigError(f"{out}: the name must end in .html")
    api.report(results, out)
    print(f"the report is in {out}: open it in a browser")
