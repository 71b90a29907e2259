"""`dips sketch`: parse, call dips.api, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips import api, rundir
from dips.data.export import check_suffix, write_columns


def sketch(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    out: Annotated[Path, typer.Option(help="The table to write (.parquet or .csv).")],
    at: Annotated[str, typer.Option(help="end: once per user; each: before every event.")] = "end",
) -> None:
    """Write everyone's sketch: the nightly job.

    Columns: user, t, position, item, rating, score.
    """
    check_suffix(out)
    bundle = rundir.open_run(run)
    columns = api.sketches(bundle, api.load(data, side=bundle.sides.names), at=at)
    write_columns(columns, out)
    users = len(set(columns["user"]))
    print(f"{len(columns['t'])} entries of {users} users are in {out}")
