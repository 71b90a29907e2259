"""`dips story`: parse, call dips.api, print."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from dips import api
from dips.cli.screen import print_json
from dips.data.atomic import written
from dips.errors import ConfigError
from dips.report.story import draw_story, story_text
from dips.report.story_page import story_page
from dips.studies import run_directory

KINDS = (".png", ".svg", ".html")


def story(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    user: Annotated[str, typer.Option(help="Whose story: the original id.")],
    data: Annotated[
        str | None, typer.Option(help="Other data, or the run's own where it has moved to.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A picture (.png or .svg) or a page (.html) to write.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Show the last so many predictions; 0: all.")] = 24,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Tell what was kept of one user, what it helped to predict, and why it went.

    Rows are kept items in order of first being kept, columns predictions:
    a hit or a miss in the top 20, or the error of a rating. A cell says how
    the item's weight changed the loss of that prediction: + helped, - hurt.
    Of what was dropped, the scores of all candidates are told.

    Without --out as text, as many of the last predictions as fit.

    Example: dips story runs/learned-4 --user 42 --out story.html
    """
    if steps < 0:
        raise ConfigError(f"--steps {steps}: give how many predictions to show, or 0 for all")
    if out is not None and out.suffix not in KINDS:
        raise ConfigError(f"{out}: the name must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    other = None
    if data is not None:
        other = api.load(data, side=run_directory.open_run(run).sides.names)
    told = api.story(run, user, other).last(steps)
    if out is not None:
        with written(out) as part:
            if out.suffix == ".html":
                part.write_text(story_page(told), encoding="utf-8")
            else:
                draw_story(told, part, out.suffix[1:])
    if as_json:
        print_json(told.to_dict())
    elif out is None:
        print(story_text(told, shutil.get_terminal_size().columns), end="")
    else:
        print(f"the story of user {user} is in {out}")
