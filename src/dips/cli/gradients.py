"""`dips gradients`: compare the policy gradients of DiPS and DiPS@1 with the true gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips.cli.options import AllowPlugins
from dips.cli.screen import print_gradients, print_json, show_count
from dips.evaluation.settings import TOLERANCE


def gradients(
    run: Annotated[Path, typer.Argument(help="A run directory of --policy dips or dips@1.")],
    data: Annotated[
        str | None, typer.Argument(help="Other data; by default the run's training users.")
    ] = None,
    users: Annotated[int, typer.Option(help="Number of users to sample.")] = 32,
    steps: Annotated[int, typer.Option(help="Number of steps to sample.")] = 20,
    longest: Annotated[int, typer.Option(help="Cut histories after this many interactions.")] = 200,
    queue: Annotated[int, typer.Option(help="Length of the queue of DiPS (Q).")] = 100,
    seed: Annotated[int, typer.Option(help="Fixes users and steps.")] = 0,
    tolerance: Annotated[
        float, typer.Option(help="An entry counts as zero up to this share of the largest one.")
    ] = TOLERANCE,
    allow_plugins: AllowPlugins = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Compare the policy gradients of DiPS and DiPS@1 with the true one, entry by entry.

    Training continues from the run's model with one update per step
    (Algorithm 1 of the paper) and without dropout. At sampled steps the
    gradient of the mean next-item loss is computed by the queue (DiPS), by a
    queue of length 1 (DiPS@1), and exactly: the full history is rolled out
    again with the current parameters and greedy decisions, and
    differentiated through all sketches; a hard decision has the derivative
    of the soft one (straight-through).

    Learning rates are those of the run if its update interval is 1, else
    those of the recipe paper, scaled by the share of users. Higher rates
    make the queue more stale.

    Writes gradients.json and gradients.png into RUN. The defaults take one
    to three minutes and about 1 GB on one core.

    Example: dips gradients runs/dips-4 --users 32 --steps 20
    """
    from dips import api
    from dips.studies import run_directory

    other = None
    if data is not None:
        trained = run_directory.open_run(run, allow_plugins=allow_plugins)
        other = api.load(data, side=trained.side.names)
    with show_count("comparing gradients", "steps") as on_progress:
        study = api.gradients(
            run,
            other,
            users=users,
            steps=steps,
            longest=longest,
            queue=queue,
            seed=seed,
            tolerance=tolerance,
            allow_plugins=allow_plugins,
            on_progress=on_progress,
        )
    found = study.to_dict()
    if as_json:
        print_json(found)
        return
    print_gradients(found)
    print(f"all steps are in {run}/gradients.json; the figure is {run}/gradients.png")
