"""Warm-start a store from lists of each user's last items, as another system kept them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dips.serve.admission import CommitResult, RefusedEvent
from dips.serve.fields import EventError, parse_name
from dips.serve.keeper import Keeper
from dips.serve.records import RecordError

UserList = tuple[str, list[dict[str, Any]]]
"""A user, and the fields of the user's events, oldest first."""


def warm_start(keeper: Keeper, lists: Iterable[UserList], **defaults: Any) -> CommitResult:
    """Apply each user's list as events, oldest first.

    A list longer than `keeper.batch` is cut to its newest events. Users that have a record are
    skipped, and a list is never split over two commits. So an interrupted import can be repeated.

    Args:
        keeper: The keeper to fill.
        lists: Users with the fields of their events.
        **defaults: Values of fields that entries do not have.

    Returns:
        What became of the events. `repeated` is the number of events of skipped users: their
        events are not compared one by one. Events of users with a damaged record are refused.

    Raises:
        StoreError: A commit failed.
    """
    result = CommitResult()
    for group in _groups(_named(lists, result), keeper.batch):
        known = _known(keeper, [user for user, _ in group])
        events = [
            {**defaults, **_given(entry), "user": user}
            for user, entries in group
            if user not in known
            for entry in entries
        ]
        result.repeated += sum(len(entries) for user, entries in group if user in known)
        result.add(keeper.observe_many(events))
    return result


def _known(keeper: Keeper, users: list[str]) -> set[str]:
    """Return the users that have an intact record; of others the keeper applies or refuses events.

    A damaged record is searched for by halving.
    """
    try:
        sketches = keeper.sketches(users)
        return {user for user, sketch in zip(users, sketches, strict=True) if sketch.seen}
    except RecordError:
        if len(users) == 1:
            return set()
        half = len(users) // 2
        return _known(keeper, users[:half]) | _known(keeper, users[half:])


def _named(lists: Iterable[UserList], result: CommitResult) -> Iterator[UserList]:
    """Yield the lists of valid users; the entries of others are refused."""
    for user, entries in lists:
        try:
            yield parse_name(user, "user"), entries
        except EventError as error:
            result.refused += [RefusedEvent({**one, "user": user}, str(error)) for one in entries]


def _given(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry that have a value."""
    return {name: value for name, value in entry.items() if value is not None}


def _groups(lists: Iterable[UserList], batch: int) -> Iterator[list[UserList]]:
    """Yield users whose lists fit into one commit; a longer list is cut to its newest events.

    A user that occurs twice starts a new group: the second list is then skipped.
    """
    group: dict[str, list[dict[str, Any]]] = {}
    free = batch
    for user, entries in lists:
        newest = entries[-batch:]
        if len(newest) > free or user in group:
            yield list(group.items())
            group, free = {}, batch
        group[user] = newest
        free -= len(newest)
    if group:
        yield list(group.items())
