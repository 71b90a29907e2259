"""`dips stream`: read events from standard input, write acknowledgements to standard output."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from dips.cli.options import AllowPlugins
from dips.cli.screen import print_json
from dips.cli.termination import termination
from dips.errors import DataError
from dips.serve.settings import BATCH, ID_BYTES
from dips.studies.progress_lines import LINE_SECONDS

if TYPE_CHECKING:
    from dips.serve.keeper import Keeper


def stream(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    store: Annotated[str, typer.Option(help="sqlite:PATH, or memory: for a trial.")],
    batch: Annotated[int, typer.Option(help="Most events in a commit.")] = BATCH,
    linger: Annotated[
        float, typer.Option(help="Most seconds to wait until a batch is full.")
    ] = 0.05,
    source: Annotated[
        str | None,
        typer.Option(
            help="Name of the log. Its durable lines are skipped when it is read again from its "
            "start, also in a renamed or compressed file."
        ),
    ] = None,
    dead_letters: Annotated[
        Path | None, typer.Option(help="File for invalid events. Default: beside the store.")
    ] = None,
    shadow: Annotated[
        Path | None,
        typer.Option(help="Another run to evaluate in shadow: it decides, and changes nothing."),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(help="File for counters in the text format of Prometheus, every 5 seconds."),
    ] = None,
    id_bytes: Annotated[
        int, typer.Option(help="Size of the deduplication window for event ids, in bytes.")
    ] = ID_BYTES,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Keep sketches up to date from events in JSON lines on standard input, plain or gzip.

    A line: {"user": ..., "item": ..., "rating": ..., "time": ..., "id" or "seq": ...}. Each durable
    commit writes one acknowledgement, {"lines": N, "applied": ..., ...}: all lines up to N are
    durable. After a crash, send the lines after the last acknowledgement again. Events with id or
    seq are applied only once. Invalid lines go to the dead-letter file. SIGTERM ends the command
    after the lines that were read are acknowledged.
    """
    from dips.serve.dead_letters import DeadLetters
    from dips.serve.keeper import open_keeper
    from dips.serve.metrics import metrics_file
    from dips.serve.sources.input_lines import InputLines
    from dips.serve.sources.lines import stream_lines

    if sys.stdin is None:
        raise DataError("standard input is closed: send events to it, one JSON object in a line")
    if sys.stdout is None:
        raise DataError("standard output is closed: acknowledgements are written to it")
    place = Path(store.partition(":")[2] or "store")
    dead = DeadLetters(dead_letters or place.with_name(place.name + ".dead.jsonl"))
    with (
        termination() as stop,
        open_keeper(
            run, store, batch=batch, id_bytes=id_bytes, allow_plugins=allow_plugins
        ) as keeper,
        metrics_file(_output(keeper, "metrics", metrics), keeper.metrics),
    ):
        _output(keeper, "dead-letters", dead.path)
        evaluated = keeper.shadow(shadow, allow_plugins=allow_plugins)
        start = printed = monotonic()
        applied = refused = lines = 0
        given = InputLines(sys.stdin.fileno(), batch, linger, stop)
        is_file = stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
        for lines, result in stream_lines(
            keeper, given, dead, source, is_file=is_file, is_stopped=given.is_stopped
        ):
            _acknowledge({"lines": lines, **result.counts()})
            applied, refused = applied + result.applied, refused + len(result.refused)
            if monotonic() - printed >= LINE_SECONDS:
                printed = monotonic()
                _print_error(f"{lines} lines, {applied / (printed - start):.0f} events/s")
        users = keeper.stats()["users"]
        _print_error(
            f"{lines} lines: {applied} events applied, {refused} refused; {users} users in {store}"
        )
        if given.is_stopped():
            _print_error("stopped by SIGTERM; the lines after these were not read")
        elif given.unfinished:
            _print_error("the last line is not complete and was not read; end it and send it again")
        if refused:
            _print_error(f"the refused events are in {dead.path}, each with its reason")
        if evaluated is not None:
            _print_error(f"shadow {shadow}: {json.dumps(evaluated.report())}")


def _output(keeper: Keeper, option: str, path: Path | None) -> Path | None:
    """Return the path of an output; refuse a directory, a file of the store, and the input."""
    if path is None:
        return None
    if keeper.owns(path):
        raise DataError(f"--{option} {path} is a file of the store: give another file")
    if path.is_dir():
        raise DataError(f"--{option} {path} is a directory: give a file")
    if path.exists() and os.path.samestat(path.stat(), os.fstat(sys.stdin.fileno())):
        raise DataError(f"--{option} {path} is the input: give another file")
    return path


def _acknowledge(commit: dict[str, int]) -> None:
    """Print the acknowledgement of a commit; exit with 2 if nobody reads it any more."""
    try:
        print_json(commit)
        sys.stdout.flush()
    except BrokenPipeError:
        _print_error("standard output was closed; what was committed stays in the store")
        raise typer.Exit(2) from None


def _print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
