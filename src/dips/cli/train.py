"""`dips train`: train a recommender with a sketching policy, and write a run directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dips.cli.origin import write_origin
from dips.cli.screen import print_decisions, print_json, print_metrics, print_verdict, show_training
from dips.cli.settings import Settings, with_settings
from dips.data.catalog import read_data
from dips.data.predefined_split import open_predefined_split
from dips.data.readers.columns import ColumnNames
from dips.data.side_information import event_column_names
from dips.errors import ConfigError

if TYPE_CHECKING:
    from dips.numerics.process_group import ProcessGroup
    from dips.studies.progress import TrainingCallback
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
        bool, typer.Option("--json", help="End with metrics.json as a line.")
    ] = False,
) -> None:
    """Train a recommender with a sketching policy, and write a run directory.

    Settings that are not given are decided from the data, in the same way
    for every policy. train prints what it decided and why; config.json
    keeps both. The paper's training settings are --recipe paper. They
    update after every step and are slow: for 100 users of ml-100k an epoch
    of dips took 100 s on one core, with the defaults 2 s.

    Several processes share the users of one run if it is started as
    torchrun --nproc-per-node 2 -m dips train ...; the result is the same.

    Example: dips train ml-1m --policy last --size 4 --out runs/last-4
    """
    from dips import api
    from dips.numerics.process_group import open_process_group
    from dips.studies.checks import data_summary, device_of, split
    from dips.training.resolve import resolve

    if (valid_data is None) != (test_data is None):
        raise ConfigError("--valid-data and --test-data go together: give both, or neither")
    further = event_column_names(settings().model.side)
    columns = ColumnNames(side=further)
    if valid_data is not None and test_data is not None:
        if settings().training.fold:
            raise ConfigError("--fold is for splits by dips: leave it out with --valid-data")
        source: Source = [data, valid_data, test_data]
        parts = open_predefined_split(
            data, valid_data, test_data, read=partial(read_data, columns=columns)
        )
        config = settings()
    else:
        source, whole = data, api.load(data, side=further)
        config = settings()
        parts = split(whole, config)
    decided = resolve(config, data_summary(parts[0], config))
    with (
        open_process_group(device_of(config)) as process_group,
        _progress(process_group) as on_progress,
    ):

        def on_start() -> None:
            if process_group.is_main:
                print_decisions(decided.decisions)
                if not resume:
                    api.print_estimate(parts, [config], "--max-users ")

        result = api.train_with(
            parts, config, out=out, source=source, test=not no_test, resume=resume,
            on_start=on_start, on_progress=on_progress, process_group=process_group,
        )  # fmt: skip
    if not process_group.is_main:
        return
    write_origin(out)
    metrics = result.metrics()
    if as_json:
        print_json(metrics)
        return
    shown = {"valid": metrics["valid"]} | ({"test": metrics["test"]} if metrics["test"] else {})
    size = "" if config.sketch.policy == "all" else f", K = {config.sketch.size}"  # it has none
    asked = f" (the best baseline of {config.sketch.policy})" if result.baseline_kept else ""
    print_metrics(f"{result.policy}{asked}{size}, on {metrics['data']}", shown)
    print(
        f"{result.all_epochs} epochs in {metrics['train_seconds']:.1f} s, "
        f"{result.interactions_per_second / 1000:.0f}K interactions/s. The model is from "
        f"{result.kept_epoch()}. Files: {out}; learning curve: {out}/curve.png"
    )
    print_verdict(str(result.verdict) if result.verdict else "")


@contextmanager
def _progress(process_group: ProcessGroup) -> Iterator[TrainingCallback]:
    """Show progress in the main process only."""
    if not process_group.is_main:
        yield lambda report: None
        return
    with show_training() as on_progress:
        yield on_progress
