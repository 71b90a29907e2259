"""`dips train`: parse, call dips.api, print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dips import api
from dips.cli.origin import note_origin
from dips.cli.screen import print_json, print_metrics, print_verdict, watch_training
from dips.cli.settings import Settings, with_settings
from dips.data.catalog import read_data
from dips.data.columns import Columns
from dips.data.parts import open_parts
from dips.data.side_information import columns_in
from dips.errors import ConfigError
from dips.numerics.process_group import ProcessGroup, gathered
from dips.studies.checks import device_of, split
from dips.studies.result import Watch
from dips.studies.run_directory import Source


@with_settings()
def train(
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    out: Annotated[Path, typer.Option(help="The run directory to write.")],
    settings: Settings,
    valid_data: Annotated[str | None, typer.Option(help="Validation users of your own.")] = None,
    test_data: Annotated[str | None, typer.Option(help="Test users of your own.")] = None,
    no_test: Annotated[bool, typer.Option("--no-test", help="Do not score the test part.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with metrics.json and the verdict as a line.")
    ] = False,
) -> None:
    """Train a recommender under a policy, and write a run directory.

    Defaults may depend on policy and task, and a recipe changes several
    at once; config.json says what was taken. dips and dips@1 take the
    recipe paper, an update after every step: for 100 users of ml-100k an
    epoch of dips took 100 s on one core, one of dips@1 10 s. With
    --recipe default they learn from whole histories at a time, in 2 s.
    Few epochs or users show that all works, and little of what a policy
    can learn.

    Started as torchrun --nproc-per-node 2 -m dips train ..., several
    processes share the users of one run, and the result is the same.

    Example: dips train ml-1m --policy last --size 4 --out runs/last-4
    """
    if (valid_data is None) != (test_data is None):
        raise ConfigError("--valid-data and --test-data go together: give both, or neither")
    further = columns_in(settings().side)
    columns = Columns(side=further)
    if valid_data is not None and test_data is not None:
        source: Source = [data, valid_data, test_data]
        parts = open_parts(data, valid_data, test_data, read=partial(read_data, columns=columns))
        config = settings(parts[0])
    else:
        source, whole = data, api.load(data, side=further)
        config = settings(whole)
        parts = split(whole, config)
    with (
        gathered(device_of(config)) as process_group,
        _watched(config.epochs, process_group) as watch,
    ):
        outcome = api.train_with(
            parts, config, out=out, source=source, test=not no_test, resume=resume, watch=watch,
            process_group=process_group,
        )  # fmt: skip
    if not process_group.leads:
        return
    note_origin(out)
    metrics = outcome.metrics()
    if as_json:
        print_json({**metrics, "verdict": outcome.verdict()})
        return
    shown = {"valid": metrics["valid"]} | ({"test": metrics["test"]} if metrics["test"] else {})
    size = "" if config.policy == "all" else f", K = {config.size}"  # it has none
    print_metrics(f"{config.policy}{size}, on {metrics['data']}", shown)
    print(
        f"{metrics['epochs']} epochs in {metrics['train_seconds']:.1f} s, of which "
        f"{outcome.kept()} stays; everything is in {out}; look at {out}/curve.png"
    )
    print_verdict(outcome.verdict())


@contextmanager
def _watched(epochs: int, process_group: ProcessGroup) -> Iterator[Watch | None]:
    """Progress on the screen of the process that leads; of others nothing is seen."""
    if not process_group.leads:
        yield None
        return
    with watch_training(epochs) as watch:
        yield watch
