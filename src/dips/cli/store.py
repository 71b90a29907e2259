"""`dips store` and `dips import`: maintenance of a store, and its warm start from lists."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dips.cli.options import AllowPlugins
from dips.data.readers.item_lists import read_item_lists
from dips.errors import DataError
from dips.serve import maintenance, readmission
from dips.serve.dead_letters import read_dead_letters
from dips.serve.settings import BATCH
from dips.serve.stores.base import Store
from dips.serve.stores.registry import open_store

app = typer.Typer(help="Check, back up, restore, compact and resize a store.", no_args_is_help=True)
Run = Annotated[Path, typer.Argument(help="A run directory.")]
Url = Annotated[str, typer.Argument(help="sqlite:PATH.")]


@app.command()
def check(store: Url) -> None:
    """Check every row and every page of a store; exit with 2 if something is damaged."""
    with _open(store, readonly=True) as opened:
        faults = maintenance.check(opened)
    for sentence in faults:
        print(f"dips: {sentence}", file=sys.stderr)
    if faults:
        raise typer.Exit(2)
    print(f"{store} is intact")


@app.command()
def accept(store: Url) -> None:
    """Open a store again that lacks commits; then send the missing events again."""
    _must_exist(store)
    open_store(store, accept_missing=True).close()
    print(f"{store} can be written again, without the missing commits")


@app.command()
def backup(store: Url, out: Annotated[Path, typer.Option(help="The file to write.")]) -> None:
    """Write a whole store to one file. Another process may stream into it meanwhile."""
    with _open(store, readonly=True) as opened:
        rows = maintenance.backup(opened, out)
    print(f"{rows} rows of {store} are in {out}")


@app.command()
def restore(
    store: Url, origin: Annotated[Path, typer.Option("--from", help="A backup file.")]
) -> None:
    """Fill a new store from a backup."""
    if not origin.is_file():
        raise DataError(f"{origin}: there is no such file; give what 'dips store backup' wrote")
    with _open(store) as opened:
        rows = maintenance.restore(origin, opened)
    print(f"{rows} rows of {origin} are in {store}")


@app.command()
def compact(store: Url) -> None:
    """Rewrite the files, so that they hold no bytes of deleted records."""
    _must_exist(store)
    with _open(store) as opened:
        opened.compact()
    print(f"{store} is compact")


@app.command()
def resize(run: Run, store: Url, allow_plugins: AllowPlugins = False) -> None:
    """Reduce every sketch that is larger than the size of a run, by the policy of the run."""
    from dips.serve.keeper import open_keeper

    _must_exist(store)
    with open_keeper(run, store, allow_plugins=allow_plugins) as keeper:
        result, size = keeper.resize(), keeper.stats()["size"]
    print(f"{result.reduced} sketches were reduced to {size} entries")
    for user, reason in result.damaged.items():
        print(f"dips: the record of user '{user}' {reason}", file=sys.stderr)
    if result.damaged:
        raise typer.Exit(2)


@app.command()
def forget(
    run: Run,
    store: Url,
    user: Annotated[list[str], typer.Option(help="User to erase; may be repeated.")],
    allow_plugins: AllowPlugins = False,
) -> None:
    """Erase users, and the bytes of their records in the files."""
    from dips.serve.keeper import open_keeper

    _must_exist(store)
    with open_keeper(run, store, allow_plugins=allow_plugins) as keeper:
        erased = sum(keeper.forget(name) for name in user)
        keeper.compact()
    print(f"{erased} of {len(user)} users had a record, which was erased from {store}")


@app.command("dead-letters")
def dead_letters(file: Annotated[Path, typer.Argument(help="A dead-letter file.")]) -> None:
    """Print the refused lines as they were, byte for byte, to stream them again once mended."""
    for line in read_dead_letters(file):
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()


@app.command()
def readmit(
    store: Url,
    user: Annotated[list[str], typer.Option(help="User whose events to accept; may be repeated.")],
    last_seq: Annotated[
        int | None, typer.Option(help="Accept only events above this seq. Default: all events.")
    ] = None,
) -> None:
    """Accept events of users again who were erased, or whose last seq is too high."""
    _must_exist(store)
    with _open(store) as opened:
        known = [readmission.readmit(opened, name, last_seq) for name in user]
    print(
        f"{sum(known)} of {len(user)} users were known; their events are accepted by {store} again"
    )


def import_lists(
    run: Run,
    lists: Annotated[Path, typer.Argument(help="Lists of last items: .jsonl, .parquet or .json.")],
    store: Annotated[str, typer.Option(help="sqlite:PATH.")],
    newest_first: Annotated[bool, typer.Option(help="Lists start with the newest item.")] = False,
    prefix: Annotated[str, typer.Option(help="Prefix to remove from user names.")] = "",
    rating: Annotated[float | None, typer.Option(help="Rating of entries that have none.")] = None,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Warm-start a store from lists of each user's last items.

    Users that have a sketch already are skipped, so an interrupted import can be repeated.
    A list of more than 10,000 items is cut to its newest ones.
    """
    from dips.serve.keeper import open_keeper
    from dips.serve.warm_start import warm_start

    with open_keeper(run, store, batch=10 * BATCH, allow_plugins=allow_plugins) as keeper:
        found = read_item_lists(lists, newest_first=newest_first, prefix=prefix)
        result = warm_start(keeper, found, rating=rating)
        users = keeper.stats()["users"]
    print(f"{result.applied} events applied, {result.repeated} of known users skipped, "
          f"{len(result.refused)} refused; {users} users in {store}")  # fmt: skip
    if result.refused:
        print(f"the first refused event: {result.refused[0].reason}", file=sys.stderr)


def _must_exist(url: str) -> None:
    """Raise an error if a store does not exist: a mistyped URL must not create one."""
    with _open(url, readonly=True):
        pass


@contextmanager
def _open(url: str, *, readonly: bool = False) -> Iterator[Store]:
    store = open_store(url, readonly=readonly)
    try:
        yield store
    finally:
        store.close()
