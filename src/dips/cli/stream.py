"""`dips stream`: events in, acknowledgements out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from dips.cli.screen import PLAIN_EVERY, print_json
from dips.serve.keeper import BATCH, ID_BYTES, open_keeper
from dips.serve.sources.lines import DeadLetters, batches, follow


def stream(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    store: Annotated[str, typer.Option(help="sqlite:PATH, or memory: to try it out.")],
    batch: Annotated[int, typer.Option(help="Most events in a commit.")] = BATCH,
    linger: Annotated[float, typer.Option(help="Seconds to wait for a batch to fill.")] = 0.05,
    source: Annotated[
        str | None,
        typer.Option(
            help="Name this input: given again from its start, what is durable is skipped."
        ),
    ] = None,
    dead_letters: Annotated[
        Path | None, typer.Option(help="Where bad events go; else beside the store.")
    ] = None,
    shadow: Annotated[
        Path | None, typer.Option(help="Another run to ask, without doing what it says.")
    ] = None,
    id_bytes: Annotated[int, typer.Option(help="Budget for remembering event ids.")] = ID_BYTES,
) -> None:
    """Keep sketches up to date from JSON lines on standard input.

    A line: {"user": ..., "item": ..., "rating": ..., "time": ..., "id" or "seq": ...}. For every
    durable commit one acknowledgement is written, {"lines": N, "applied": ..., ...}: all lines up
    to N are safe. After a crash send the lines after the last acknowledgement again; with id or seq
    nothing is applied twice. Bad lines go to a file and stop nothing.
    """
    place = Path(store.partition(":")[2] or "store")
    dead = DeadLetters(dead_letters or place.with_name(place.name + ".dead.jsonl"))
    with open_keeper(run, store, batch=batch, id_bytes=id_bytes) as keeper:
        watched = None if shadow is None else keeper.shadow(shadow)
        began = told = monotonic()
        applied = refused = read = 0
        for done in follow(keeper, batches(sys.stdin.fileno(), batch, linger), dead, source):
            try:
                print_json(done.to_dict())
                sys.stdout.flush()
            except BrokenPipeError:
                _say("nobody reads the acknowledgements any more; what was committed stays")
                raise typer.Exit(2) from None
            applied, refused = applied + done.tally.applied, refused + len(done.tally.refused)
            read = done.lines
            if monotonic() - told >= PLAIN_EVERY:
                told = monotonic()
                _say(f"{read} lines, {applied / (told - began):.0f} events/s")
        users = keeper.stats()["users"]
        _say(f"{read} lines: {applied} events applied, {refused} refused; {users} users in {store}")
        if refused:
            _say(f"the refused ones are in {dead.path}, each with its reason")
        if watched is not None:
            _say(f"shadow {shadow}: {json.dumps(watched.report())}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
