"""`dips gradients`: parse, call dips.api, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips import api
from dips.cli.screen import print_gradients, print_json, watch_count
from dips.evaluation.gradient_quality import TOLERANCE
from dips.studies import run_directory


def gradients(
    run: Annotated[Path, typer.Argument(help="A run directory of --policy dips or dips@1.")],
    data: Annotated[
        str | None, typer.Argument(help="Other data; else the run's own training users.")
    ] = None,
    users: Annotated[int, typer.Option(help="Users who walk on, drawn by the seed.")] = 32,
    steps: Annotated[int, typer.Option(help="Steps to compare at, drawn by the seed.")] = 20,
    longest: Annotated[int, typer.Option(help="Cut histories after this many.")] = 200,
    queue: Annotated[int, typer.Option(help="The queue of DiPS (Q).")] = 100,
    seed: Annotated[int, typer.Option(help="Fixes users and steps.")] = 0,
    tolerance: Annotated[
        float, typer.Option(help="Zero is up to this share of a gradient's largest entry.")
    ] = TOLERANCE,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Compare the policy gradients of DiPS and DiPS@1 with the true one, entry by entry.

    Training goes on from the run's model, one update a step (Algorithm 1 of
    the paper), dropout off. At sampled steps the gradient of the users' mean
    next-item loss is computed by the queue (DiPS), by a queue of 1 (DiPS@1),
    and truly: the whole sketching history is made again with the current
    parameters, choices greedy, and differentiated along all paths through the
    sketches; only a hard choice has the slope of the soft one
    (straight-through).

    Rates are the run's own if it was trained at stretch 1, else those of the
    recipe paper, in proportion to the users; the higher they are, the staler
    the queue.

    Writes gradients.json and gradients.png into RUN. The whole history is
    made again at every sampled step: the defaults take one to three minutes
    and about 1 GB on one core.

    Example: dips gradients runs/dips-4 --users 32 --steps 20
    """
    other = None
    if data is not None:
        other = api.load(data, side=run_directory.open_run(run).sides.names)
    with watch_count("comparing gradients", "steps") as watch:
        study = api.gradients(
            run,
            other,
            users=users,
            steps=steps,
            longest=longest,
            queue=queue,
            seed=seed,
            tolerance=tolerance,
            watch=watch,
        )
    found = study.to_dict()
    if as_json:
        print_json(found)
        return
    print_gradients(found)
    print(f"all steps are in {run}/gradients.json; look at {run}/gradients.png")
