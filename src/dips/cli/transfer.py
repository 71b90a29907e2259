"""`dips transfer`: score a sequential model on the sketches of policies trained with NCF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips.cli.origin import command, write_origin
from dips.cli.screen import print_json, print_transfer, show_study
from dips.cli.settings import Repeats, Seed, Settings, numbers, policy_names, with_settings
from dips.data.side_information import event_column_names
from dips.studies.paper_plan import TRANSFER_POLICIES

OWN = ("policy", "size", "every", "periods", "seed", "fold", "repeat", "recommender", "max_seconds")
"""Settings that the study itself sets."""


@with_settings(leave_out=OWN)
def transfer(
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    out: Annotated[Path, typer.Option(help="Results directory; the same command resumes it.")],
    settings: Settings,
    policies: Annotated[str, typer.Option(help="Policies that keep the sketches.")] = ",".join(
        TRANSFER_POLICIES
    ),
    sizes: Annotated[str, typer.Option(help="Sketch sizes.")] = "1,2,4,8,16,32",
    recommender: Annotated[str, typer.Option(help="Target model: gru or sasrec.")] = "gru",
    target_epochs: Annotated[
        int, typer.Option(help="Epochs of the target model; 0: the value of --epochs.")
    ] = 0,
    folds: Annotated[int, typer.Option(help="How many of the five folds of users.")] = 3,
    seed: Seed = 0,
    repeats: Repeats = 1,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Score a sequential model on the sketches of policies trained with NCF.

    The sequential model is trained on full histories, once per fold.
    Policies that learn or read signals are trained with NCF (dot, softmax)
    at every size. On test users the model reads the K items of a sketch, in
    order of time. ratios.csv has the sizes at which policies are equally
    good. The paper: up to 50 % fewer items than reservoir.

    Settings apply to both models. dips and dips@1 take the slow recipe paper
    unless --recipe is given. For data with ratings add --task implicit.

    Example: dips transfer foursquare-nyc --policies learned,reservoir,last --out transfer
    """
    from dips import api

    whole = api.load(data, side=event_column_names(settings().model.side))
    with show_study() as on_progress:
        result = api.transfer(
            whole,
            policy_names(policies),
            numbers("sizes", sizes),
            folds=folds,
            seed=seed,
            repeats=repeats,
            recommender=recommender,
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
    print_transfer(result, f"{data}, target model {recommender}", out)
