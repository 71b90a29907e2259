"""`dips evaluate`: score a run on its test users, or on the users of other data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips.cli.options import AllowPlugins, EscapeFormulas
from dips.cli.screen import print_json, print_metrics
from dips.data.export import check_suffix, write_columns


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[
        str | None, typer.Argument(help="Other data; by default the run's test users.")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Write every prediction here (.parquet or .csv).")
    ] = None,
    escape_formulas: EscapeFormulas = False,
    allow_plugins: AllowPlugins = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Score a run on its test users, or on the users of other data.

    Training and validation users of the run are never scored.
    """
    from dips import api
    from dips.studies import run_directory
    from dips.studies.sketches import prediction_columns

    if predictions is not None:
        check_suffix(predictions)
    trained = run_directory.open_run(run, allow_plugins=allow_plugins)
    if data is None:
        unseen = run_directory.read_part(run, "test")
    else:
        other = api.load(data, side=trained.side.names)
        unseen = run_directory.unseen_users(other, [run_directory.read_split(run)])
    source = data or unseen.name
    metrics = api.evaluate(trained, unseen)
    if predictions is not None:
        columns = prediction_columns(trained, unseen)
        write_columns(columns, predictions, escape_formulas=escape_formulas)
    if as_json:
        print_json({"run": str(run), "data": source, "users": unseen.users, "test": metrics})
        return
    print_metrics(f"{run} on {unseen.users} users of {source}", {"test": metrics})
    if predictions is not None:
        print(f"all predictions are in {predictions}")
