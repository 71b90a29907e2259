"""Find one user in the data of a run; explain the user's sketches and predictions (`Story`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dips.data.interactions import Interactions
from dips.errors import DataError
from dips.evaluation.story import Story, explain_user
from dips.studies import run_directory
from dips.studies.sketches import reindex_items

EXAMPLES = 4
"""Number of users that the message about an unknown user names."""
SEARCHED = 10_000
"""Users of each table that are searched for these examples: a message needs no more."""


def user_story(
    run: Path, user: str, data: Interactions | None = None, *, allow_plugins: bool = False
) -> Story:
    """Return the story of a user.

    Args:
        run: A run directory.
        user: Original id of the user.
        data: Other data; by default the data of the run.
        allow_plugins: Whether a user's own class that the run names is imported.

    Raises:
        DataError: If the user is unknown or has no item that the run knows.
    """
    trained = run_directory.open_run(run, allow_plugins=allow_plugins)
    parts = run_directory.read_split(run)
    tables = run_directory.read_source(run) if data is None else [data]
    table = next((table for table in tables if _has_user(table, user)), None)
    if table is None:
        some = ", ".join(_examples(tables, parts["test"]))
        where = tables[0].name
        raise DataError(f"--user {user}: {where} has no such user; for example, it has {some}")
    history = reindex_items(trained, table.select([table.find_user(user)]))
    if history.users == 0:
        raise DataError(f"--user {user}: the run knows none of the user's items; give another user")
    part = next((name for name in run_directory.PARTS if user in parts[name]), "")
    run_policy = run_directory.read_settings(run).sketch.policy
    return explain_user(
        trained, history, user=0, part=part, run_policy=run_policy, title=_titles(table)
    )


def _has_user(table: Interactions, user: str) -> bool:
    """Return whether a table, which may be a part of a larger one, has the user."""
    row = table.user_ids.index.get(user)
    return row is not None and bool((table.user_rows == row).any())


def _titles(table: Interactions) -> Callable[[str], str | None]:
    """Return a function from an item's original id to its title."""
    titles, place = table.titles, table.item_ids.index
    return lambda item: None if titles is None else titles[place[item]]


def _examples(tables: list[Interactions], tested: set[str]) -> list[str]:
    """Return some user ids among the first `SEARCHED` of each table, test users first."""
    ids = [table.user_id(user) for table in tables for user in range(min(table.users, SEARCHED))]
    return sorted(ids, key=lambda name: name not in tested)[:EXAMPLES]  # the sort is stable
