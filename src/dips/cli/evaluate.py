"""`dips evaluate`: parse, call dips.api, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dips import api, nightly, rundir
from dips.cli.screen import print_json, print_metrics
from dips.data.export import check_suffix, write_columns
from dips.data.interactions import Interactions
from dips.errors import DataError


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[str | None, typer.Argument(help="Other data; else the run's own.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Write every prediction here (.parquet or .csv).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Score a run on its test users, or on the users of other data.

    Users who trained or validated the run are never scored.
    """
    if predictions is not None:
        check_suffix(predictions)
    bundle = rundir.open_run(run)
    source = data or str(rundir.read_config(run)["data"])
    unseen = _unseen(api.load(source), rundir.read_split(run), source)
    metrics = api.evaluate(bundle, unseen)
    if predictions is not None:
        write_columns(nightly.predictions(bundle, unseen), predictions)
    if as_json:
        print_json({"run": str(run), "data": source, "users": unseen.users, "test": metrics})
        return
    print_metrics(f"{run} on {unseen.users} users of {source}", {"test": metrics})
    if predictions is not None:
        Console().print(f"every prediction is in {predictions}", highlight=False)


def _unseen(data: Interactions, part_of: dict[str, str], source: str) -> Interactions:
    users = [
        user for user in range(data.users) if part_of.get(data.user_id(user), "test") == "test"
    ]
    if not users:
        raise DataError(
            f"{source}: all of its users trained or validated this run; give other data"
        )
    return data.select(users)
