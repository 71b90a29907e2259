"""`dips session`: train and score session models that read a sketch of earlier sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips.cli.origin import command, write_origin
from dips.cli.screen import print_json, print_transfer, show_study
from dips.cli.settings import Repeats, Seed, Settings, numbers, policy_names, with_settings
from dips.data.side_information import event_column_names

OWN = (
    "policy",
    "size",
    "every",
    "periods",
    "seed",
    "fold",
    "repeat",
    "recommender",
    "split",
    "max_seconds",
)
"""Settings that the study itself sets."""


@with_settings(leave_out=OWN)
def session(
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    out: Annotated[Path, typer.Option(help="Results directory; the same command resumes it.")],
    settings: Settings,
    policies: Annotated[
        str, typer.Option(help="Policies that keep the sketches.")
    ] = "reservoir,last,learned",
    sizes: Annotated[str, typer.Option(help="Sketch sizes; 0 is without a sketch.")] = "0,2,4,8",
    target_epochs: Annotated[
        int, typer.Option(help="Epochs of the target model; 0: the value of --epochs.")
    ] = 0,
    folds: Annotated[int, typer.Option(help="How many of the five folds of users.")] = 3,
    seed: Seed = 0,
    repeats: Repeats = 1,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Add a sketch of the past to session-based recommendation.

    Histories are cut into sessions of four. One GRU reads the items of the
    session so far, another one a sketch of K items of earlier sessions; the
    scores depend on both states. Policies are trained with NCF and refresh
    every 4 interactions. A session model is trained for each policy, size
    and fold. A sketch holds all earlier items while there are at most K.
    The paper: more than 20 % better than without a sketch.

    Settings apply to session models and NCF. For data with ratings add
    --task implicit.

    Example: dips session foursquare-nyc --sizes 0,2,4,8 --out session
    """
    from dips import api

    whole = api.load(data, side=event_column_names(settings().model.side))
    with show_study() as on_progress:
        result = api.session(
            whole,
            policy_names(policies),
            numbers("sizes", sizes),
            folds=folds,
            seed=seed,
            repeats=repeats,
            target_epochs=target_epochs,
            out=out,
            on_progress=on_progress,
            source=data,
            command=command(),
            config=settings,
        )
    write_origin(out)
    if as_json:
        print_json(result.to_dict())
        return
    print_transfer(result, f"{data}, sessions of four", out)
