"""`dips paper`: run all experiments of the paper on one data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dips.cli.origin import command, write_origin
from dips.cli.screen import print_json, print_stages, print_verdict, show_study
from dips.cli.settings import Seed
from dips.report.markup import format_seconds
from dips.studies.paper_plan import STAGES

if TYPE_CHECKING:
    from dips.studies.stages import StageProgress


def paper(
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    out: Annotated[Path, typer.Option(help="Results directory; the same command resumes it.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A reduced version with short histories: under 10 minutes on 2 cores.",
        ),
    ] = False,
    stages: Annotated[str, typer.Option(help="Which stages to run.")] = ",".join(STAGES),
    folds: Annotated[
        int | None,
        typer.Option(
            help="How many of the five folds of users. \\[default: 5; quick: 1]",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; by default cuda if there is a GPU.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the training users. \\[default: by the data; quick: 5]",
            show_default=False,
        ),
    ] = None,
    max_users: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of users. \\[default: all; quick: 100]", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Run all experiments of the paper on one data set, and write report.html.

    compare    all policies by size and period; on ratings if there are any
    transfer   sketches of all policies, read by a GRU4Rec of full histories
    session    sessions of four with a sketch of earlier sessions
    gradients  policy gradients of dips, compared with the true gradients
    story      sketches and predictions of one user of learned

    Transfer and session predict items. Star ratings are converted to likes
    above 3.5 and reduced to the 20-core; of other ratings all are kept.

    The same command continues an interrupted call. A stage that the data
    does not allow is skipped with a reason. Without --quick, dips and dips@1
    take the slow recipe paper: days on a CPU for a large data set.

    Example: dips paper ml-1m --quick --out paper
    """
    from dips import api

    given = {"device": device, "epochs": epochs, "max_users": max_users}
    with show_paper() as on_progress:
        found = api.paper(
            api.load(data),
            out,
            quick=quick,
            stages=[name for name in stages.split(",") if name],
            folds=folds,
            seed=seed,
            source=data,
            command=command(),
            on_results=write_origin,
            on_progress=on_progress,
            **{name: value for name, value in given.items() if value is not None},
        )
    if as_json:
        print_json(found)
        return
    print_stages(found["stages"])
    print(f"the report is in {found['report']}: open it in a browser")
    if "story" in found:
        print(f"story: {found['story']}")
    print_verdict(found["verdict"])


@contextmanager
def show_paper() -> Iterator[Callable[[StageProgress], None]]:
    """Yield a callback that shows the progress of all stages and the remaining time."""
    with show_study() as on_progress:
        yield lambda progress: on_progress(replace(progress.study, phase=describe_stage(progress)))


def describe_stage(progress: StageProgress) -> str:
    """Return the number and the name of the stage, and the remaining time of all stages."""
    where = f"stage {progress.number}/{progress.stages} {progress.stage}"
    if progress.study.phase != progress.stage:
        where = f"{where}, {progress.study.phase}"
    left = progress.seconds_left
    return where if left is None else f"{where} ({format_seconds(left)} left)"
