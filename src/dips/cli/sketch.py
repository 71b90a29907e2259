"""`dips sketch`: write the sketches of all users to a table, or print one from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips.cli.options import AllowPlugins, EscapeFormulas
from dips.cli.screen import print_json, print_sketch
from dips.data.export import check_suffix, write_columns
from dips.errors import ConfigError


def sketch(
    run: Annotated[Path | None, typer.Argument(help="A run directory.")] = None,
    data: Annotated[
        str | None, typer.Argument(help="A catalogue name, a file, a directory or a zip.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The table to write (.parquet or .csv).")] = None,
    at: Annotated[
        str, typer.Option(help="end: one sketch per user; each: one before every event.")
    ] = "end",
    store: Annotated[
        str | None, typer.Option(help="Read from a store instead: sqlite:PATH.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Whose sketch to read from the store.")] = None,
    escape_formulas: EscapeFormulas = False,
    allow_plugins: AllowPlugins = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Write the sketches of all users to a table, or print one from a store.

    To print one sketch, give --store URL and --user U.

    Columns: user, t, position, item, rating, score.
    """
    if store is not None:
        from dips.serve.reader import read_sketches

        if user is None or run is not None or data is not None:
            raise ConfigError("with --store give --user, and neither a run nor data")
        (found,) = read_sketches(store, [user])
        if as_json:
            print_json(found.to_dict())
        else:
            print_sketch(found.to_dict())
        return
    if run is None or data is None or out is None:
        raise ConfigError("give a run, data and --out FILE; or --store URL and --user U")
    from dips import api
    from dips.studies import run_directory

    check_suffix(out)
    trained = run_directory.open_run(run, allow_plugins=allow_plugins)
    columns = api.sketches(trained, api.load(data, side=trained.side.names), at=at)
    write_columns(columns, out, escape_formulas=escape_formulas)
    users = len(set(columns["user"]))
    print(f"{len(columns['t'])} entries of {users} users are in {out}")
