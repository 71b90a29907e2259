"""Begin with what another system kept: lists of last items become sketches, user by user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dips.serve.admission import Tally
from dips.serve.keeper import Keeper


def warm_start(
    keeper: Keeper, lists: Iterable[tuple[str, list[dict[str, Any]]]], **default: Any
) -> Tally:
    """Apply each user's list, oldest first, as if its events came now.

    `default` fills fields that entries lack. Users who have a record already are left alone and
    each list is one commit or part of one, so an interrupted import is simply repeated.
    """
    tally = Tally()
    for piece in _pieces(lists, keeper.batch):
        known = keeper.sketches([user for user, _ in piece])
        fresh = {sketch.user for sketch in known if sketch.seen == 0}
        events = [
            {**default, **entry, "user": user}
            for user, entries in piece
            if user in fresh
            for entry in entries
        ]
        tally.repeated += sum(len(entries) for user, entries in piece if user not in fresh)
        tally.add(keeper.observe_many(events))
    return tally


def _pieces(
    lists: Iterable[tuple[str, list[dict[str, Any]]]], batch: int
) -> Iterator[list[tuple[str, list[dict[str, Any]]]]]:
    """Users whose lists fit into one commit together; a longer list is cut to its newest part."""
    piece: list[tuple[str, list[dict[str, Any]]]] = []
    room = batch
    for user, entries in lists:
        newest = entries[-batch:]
        if len(newest) > room or any(user == other for other, _ in piece):
            yield piece
            piece, room = [], batch
        piece.append((user, newest))
        room -= len(newest)
    if piece:
        yield piece
