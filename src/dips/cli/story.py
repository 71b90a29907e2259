"""`dips story`: show the sketches of one user, and which entries helped which predictions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from dips.cli.options import AllowPlugins
from dips.cli.screen import print_json
from dips.data.atomic_write import atomic_write
from dips.errors import ConfigError

KINDS = (".png", ".svg", ".html")


def story(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    user: Annotated[str, typer.Option(help="Original id of the user.")],
    data: Annotated[
        str | None, typer.Option(help="Other data, or the new place of the run's data.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A figure (.png or .svg) or a page (.html) to write.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of newest predictions to show; 0: all.")] = 24,
    allow_plugins: AllowPlugins = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Show the sketches of one user, and which entries helped which predictions.

    Rows are items in order of first being kept. Columns are predictions: hit
    or miss in the top 20, or the error of a rating. Cells: +: the item helped
    (its weight lowers the loss); -: it hurt. For each refresh the scores of
    all candidates are listed.

    Without --out the story is printed as text, as far as it fits.

    Example: dips story runs/learned-4 --user 42 --out story.html
    """
    if steps < 0:
        raise ConfigError(f"--steps is {steps}: it must be at least 0; 0 shows all predictions")
    if out is not None and out.suffix not in KINDS:
        raise ConfigError(f"{out}: the name must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    from dips import api
    from dips.report.story import draw_story, story_text
    from dips.report.story_page import story_page
    from dips.studies import run_directory

    other = None
    if data is not None:
        trained = run_directory.open_run(run, allow_plugins=allow_plugins)
        other = api.load(data, side=trained.side.names)
    shown = api.story(run, user, other, allow_plugins=allow_plugins).last(steps)
    if out is not None:
        with atomic_write(out) as part:
            if out.suffix == ".html":
                part.write_text(story_page(shown), encoding="utf-8")
            else:
                draw_story(shown, part, out.suffix[1:])
    if as_json:
        print_json(shown.to_dict())
    elif out is None:
        print(story_text(shown, shutil.get_terminal_size().columns), end="")
    else:
        print(f"the story of user {user} is in {out}")
