"""`dips report`: write results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips.errors import ConfigError


def report(
    results: Annotated[
        list[Path],
        typer.Argument(help="Directories of dips compare, transfer, session, gradients or train."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write (.html).")],
) -> None:
    """Write results as one HTML page without scripts or network access.

    The page has tables beside the paper's numbers, quality by sketch size
    and by bytes per user, sizes of equal quality, transfer, sessions,
    gradients, training curves, timings, settings, environment and commands,
    as far as there are results. A directory of such directories works too.

    Example: dips report results runs/dips-4 --out report.html
    """
    from dips import api

    if out.suffix != ".html":
        raise ConfigError(f"{out}: the name must end in .html")
    api.report(results, out)
    print(f"the report is in {out}: open it in a browser")
