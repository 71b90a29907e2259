"""`dips paper`: parse, call dips.api, print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dips import api
from dips.cli.origin import command, note_origin
from dips.cli.screen import print_json, print_stages, print_verdict, watch_study
from dips.cli.settings import seeds
from dips.report.markup import seconds
from dips.studies.paper import STAGES
from dips.studies.stages import Progress


def paper(
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    out: Annotated[Path, typer.Option(help="Where everything goes; the same call resumes it.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A small version, with beginnings of histories: under 10 minutes on 2 cores.",
        ),
    ] = False,
    stages: Annotated[str, typer.Option(help="Which stages to run.")] = ",".join(STAGES),
    seed_text: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            help="5 means 0 to 4; 7,8 means exactly these. \\[default: 5; quick: 1]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the training users of a run. \\[default: by policy; quick: 5]",
            show_default=False,
        ),
    ] = None,
    max_users: Annotated[
        int | None,
        typer.Option(help="So many users only. \\[default: all; quick: 200]", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Run everything that the paper shows for one data set; ends in report.html.

    compare    all policies by size and period; ratings where there are any
    transfer   what policies keep, read by a GRU4Rec that learned from all
    session    sessions of four with a sketch of what came before
    gradients  how true the policy gradients of the paper's network are
    story      what was kept of one user of learned, why, and what for

    Transfer and session predict items. Of ratings up to five stars those
    above 3.5 count, then the 20-core; of other ratings all.

    An interrupted call goes on with the same command. A stage that the data
    does not allow says why, and the others go on. Without --quick dips and
    dips@1 take the slow recipe paper: days on a CPU for a large data set.

    Example: dips paper ml-1m --quick --out paper
    """
    given = {"epochs": epochs, "max_users": max_users}
    with watch_paper() as watch:
        found = api.paper(
            api.load(data),
            out,
            quick=quick,
            stages=[name for name in stages.split(",") if name],
            seeds=None if seed_text is None else seeds(seed_text),
            source=data,
            command=command(),
            note=note_origin,
            watch=watch,
            device=device,
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
def watch_paper() -> Iterator[Callable[[Progress], None]]:
    """The progress of a study, with its stage and the time that all of them still take."""
    with watch_study() as watch:
        yield lambda progress: watch(replace(progress.update, stage=in_words(progress)))


def in_words(progress: Progress) -> str:
    """Which stage of how many, and how long everything still takes."""
    where = f"stage {progress.place}/{progress.stages} {progress.stage}"
    if progress.update.stage != progress.stage:
        where = f"{where}, {progress.update.stage}"
    left = progress.seconds_left
    return where if left is None else f"{where} ({seconds(left)} to go)"
