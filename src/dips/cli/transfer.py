"""`dips transfer`: parse, call dips.api, print."""

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

OWN = ("policy", "size", "every", "periods", "seed", "recommender", "max_seconds")
"""Settings that the study gives itself."""


@with_settings(leave_out=OWN)
def transfer(
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    out: Annotated[Path, typer.Option(help="The results directory; the same call resumes it.")],
    settings: Settings,
    policies: Annotated[str, typer.Option(help="Who chooses what is read.")] = ",".join(
        api.TRANSFERRED
    ),
    sizes: Annotated[str, typer.Option(help="Sketch sizes.")] = "1,2,4,8,16,32",
    recommender: Annotated[
        str, typer.Option(help="Who reads: gru, gru-separate or sasrec.")
    ] = "gru",
    reader_epochs: Annotated[
        int, typer.Option(help="Epochs of those who read; 0: as --epochs, which is for both.")
    ] = 0,
    seed_text: Annotated[
        str, typer.Option("--seeds", help="3 means 0 to 2; 7,8 means exactly these.")
    ] = "3",
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Show a sequential model only what policies trained with NCF keep.

    The sequential model learns from whole histories, once for each seed.
    Every policy is trained with NCF (dot, softmax) at every size, unless it
    neither learns nor asks; test users then show the model the K items that
    it keeps, in order of time. ratios.csv tells at which sizes policies are
    equally good. The paper: up to 50 % fewer items than reservoir.

    Settings are for both models. dips and dips@1 take the slow recipe paper
    unless --recipe says otherwise. Ratings: add --task implicit.

    Example: dips transfer foursquare-nyc --policies learned,reservoir,last --out transfer
    """
    whole = api.load(data, side=columns_in(settings().side))
    with watch_study() as watch:
        result = api.transfer(
            whole,
            policy_names(policies),
            numbers("sizes", sizes),
            seeds(seed_text),
            recommender=recommender,
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
    print_handover(result, f"{data}, read by {recommender}", out)
