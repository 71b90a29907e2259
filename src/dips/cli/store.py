"""`dips store` and `dips import`: care of a store, and a warm start from lists."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dips.data.lists import read_lists
from dips.serve import maintenance as upkeep
from dips.serve.keeper import BATCH, open_keeper
from dips.serve.stores.base import Store, open_store
from dips.serve.warm_start import warm_start

app = typer.Typer(help="Check, back up, restore, compact and resize a store.", no_args_is_help=True)
Url = Annotated[str, typer.Argument(help="sqlite:PATH.")]


@app.command()
def check(store: Url) -> None:
    """Read every row and every page; exit with 2 when something is wrong."""
    with _opened(store, readonly=True) as opened:
        wrong = upkeep.check(opened)
    for sentence in wrong:
        print(f"dips: {sentence}", file=sys.stderr)
    if wrong:
        raise typer.Exit(2)
    print(f"{store} is whole")


@app.command()
def backup(store: Url, out: Annotated[Path, typer.Option(help="The file to write.")]) -> None:
    """Write all of a store into one file, while another process may be streaming into it."""
    with _opened(store, readonly=True) as opened:
        rows = upkeep.backup(opened, out)
    print(f"{rows} rows of {store} are in {out}")


@app.command()
def restore(store: Url, origin: Annotated[Path, typer.Option("--from", help="A backup.")]) -> None:
    """Fill a new store from a backup."""
    with _opened(store) as opened:
        rows = upkeep.restore(origin, opened)
    print(f"{rows} rows of {origin} are in {store}")


@app.command()
def compact(store: Url) -> None:
    """Write the files anew, so that nothing of what was deleted stays in them."""
    _must_exist(store)
    with _opened(store) as opened:
        opened.compact()
    print(f"{store} is compact")


@app.command()
def resize(run: Annotated[Path, typer.Argument(help="A run directory.")], store: Url) -> None:
    """Bring every sketch that is too large to the size of a run, now."""
    _must_exist(store)
    with open_keeper(run, store) as keeper:
        print(f"{keeper.resize()} sketches were cut to {keeper.stats()['size']} entries")


@app.command()
def forget(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    store: Url,
    user: Annotated[list[str], typer.Option(help="Whom to erase; may be repeated.")],
) -> None:
    """Erase users, and every trace of them from the files."""
    _must_exist(store)
    with open_keeper(run, store) as keeper:
        gone = sum(keeper.forget(name) for name in user)
        keeper.compact()
    print(f"{gone} of {len(user)} users had a record; nothing of it is left in {store}")


def import_lists(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    lists: Annotated[Path, typer.Argument(help="Lists of last items: .jsonl, .parquet or .json.")],
    store: Annotated[str, typer.Option(help="sqlite:PATH.")],
    newest_first: Annotated[bool, typer.Option(help="Lists begin with the newest.")] = False,
    prefix: Annotated[str, typer.Option(help="What to take off the front of users.")] = "",
    rating: Annotated[float | None, typer.Option(help="Where entries have none.")] = None,
) -> None:
    """Start from lists of last items that another system kept.

    Users who have a sketch already are left alone; an interrupted import is simply repeated.
    """
    with open_keeper(run, store, batch=10 * BATCH) as keeper:
        found = read_lists(lists, newest_first=newest_first, prefix=prefix)
        tally = warm_start(keeper, found, rating=rating)
        users = keeper.stats()["users"]
    print(f"{tally.applied} events applied, {tally.repeated} of known users left out, "
          f"{len(tally.refused)} refused; {users} users in {store}")  # fmt: skip
    if tally.refused:
        print(f"the first one refused: {tally.refused[0][1]}", file=sys.stderr)


def _must_exist(url: str) -> None:
    """Refuse a store that is not there: nothing can be erased from one that was mistyped."""
    with _opened(url, readonly=True):
        pass


@contextmanager
def _opened(url: str, *, readonly: bool = False) -> Iterator[Store]:
    store = open_store(url, readonly=readonly)
    try:
        yield store
    finally:
        store.close()
