"""One user of a run, found in its data: the story is told by `evaluation.story`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dips.data.interactions import Interactions
from dips.errors import DataError
from dips.evaluation.story import Story, tell
from dips.studies import run_directory
from dips.studies.sketches import in_vocabulary

EXAMPLES = 4
"""How many users are named where somebody asks for one who is not there."""


def story_of(run: Path, user: str, data: Interactions | None = None) -> Story:
    """The story of the user with this original id, in the run's own data or in other data."""
    trained, parts = run_directory.open_run(run), run_directory.read_split(run)
    tables = run_directory.own_data(run) if data is None else [data]
    table = next((table for table in tables if _holds(table, user)), None)
    if table is None:
        some = ", ".join(_examples(tables, parts["test"]))
        where = tables[0].name
        raise DataError(f"--user {user}: {where} has no such user; try, for example, {some}")
    alone = in_vocabulary(trained, table.select([table.find_user(user)]))
    if alone.users == 0:
        raise DataError(f"--user {user}: the run knows none of this user's items; try another")
    part = next((name for name in run_directory.PARTS if user in parts[name]), "")
    of = run_directory.read_settings(run).policy
    return tell(trained, alone, 0, part=part, of=of, title=_titles(table))


def _holds(table: Interactions, user: str) -> bool:
    """Whether the user is in this table, and not only in the one that it is a part of."""
    row = table.user_ids.index.get(user)
    return row is not None and bool((table.user_rows == row).any())


def _titles(table: Interactions) -> Callable[[str], str | None]:
    """From original ids to titles: a run numbers items its own way."""
    titles, place = table.titles, table.item_ids.index
    return lambda item: None if titles is None else titles[place[item]]


def _examples(tables: list[Interactions], tested: set[str]) -> list[str]:
    """Some who are there, test users first: of them the run has learned nothing."""
    there = [table.user_id(user) for table in tables for user in range(min(table.users, 10_000))]
    return sorted(there, key=lambda name: name not in tested)[:EXAMPLES]  # the sort is stable
