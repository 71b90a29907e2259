"""`dips session`: parse, call dips.api, print."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dips import api
from dips.cli.origin import command, note_origin
from dips.cli.screen import print_handover, print_json, watch_study
from dips.cli.settings import Settings, numbers, policy_names, seeds, with_settings
from dips.data.side_information import columns_in

OWN = ("policy", "size", "every", "periods", "seed", "recommender", "split", "max_seconds")
"""Settings that the study gives itself."""


@with_settings(leave_out=OWN)
def session(
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    out: Annotated[Path, typer.Option(help="The results directory; the same call resumes it.")],
    settings: Settings,
    policies: Annotated[str, typer.Option(help="Who keeps the sketch.")] = "reservoir,last,learned",
    sizes: Annotated[str, typer.Option(help="Sketch sizes; 0 is without a sketch.")] = "0,2,4,8",
    reader_epochs: Annotated[
        int, typer.Option(help="Epochs of those who read; 0: as --epochs, which is for both.")
    ] = 0,
    seed_text: Annotated[
        str, typer.Option("--seeds", help="3 means 0 to 2; 7,8 means exactly these.")
    ] = "3",
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Add a sketch of the past to session-based recommendation.

    Histories are cut into sessions of four. A prediction is made from the
    0 to 3 items of the session so far, read by one GRU, and from a sketch of
    K items of the sessions before, read by another; both states go into the
    scores. Policies are trained with NCF, refreshed every 4, and a session
    model is trained for each policy, size and seed on that policy's sketches.
    While there are no more than K items before a session, the sketch has all
    of them. The paper: more than 20 % better than without a sketch.

    Settings are for session models and NCF. Ratings: add --task implicit.

    Example: dips session foursquare-nyc --sizes 0,2,4,8 --out session
    """
    whole = api.load(data, side=columns_in(settings().side))
    with watch_study() as watch:
        result = api.session(
            whole,
            policy_names(policies),
            numbers("sizes", sizes),
            seeds(seed_text),
            reader_epochs=reader_epochs,
            out=out,
            watch=watch,
            source=data,
            command=command(),
            config=partial(settings, whole),
        )
    note_origin(out)
    if as_json:
        print_json(result.to_dict())
        return
    print_handover(result, f"{data}, sessions of four", out)
