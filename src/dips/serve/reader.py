"""Sketches as people and programs read them. Needs a store and nothing of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dips.serve.records import Rows, decode
from dips.serve.stores.base import Table, open_store
from dips.serve.vocabulary import Vocabulary


@dataclass(frozen=True)
class Entry:
    """An interaction that is remembered."""

    item: str
    rating: float
    time: int
    position: int
    """Its place in the user's history, from 0."""
    repeats: int
    """Times the item was met while it was remembered."""


@dataclass(frozen=True)
class UserSketch:
    """What is remembered of a user."""

    user: str
    seen: int
    """Interactions so far."""
    policy: int
    """Version of the policy that changed it last; 0 where there is no record."""
    last: int | None
    """The last sequence number."""
    entries: tuple[Entry, ...]
    """The sketch, oldest first."""
    waiting: tuple[Entry, ...] = ()
    """What came since the last refresh, and is not part of the sketch yet."""

    @property
    def items(self) -> list[str]:
        """The items of the sketch, oldest first."""
        return [entry.item for entry in self.entries]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_store(url: str, users: Sequence[str]) -> list[UserSketch]:
    """The sketches of some users, while another process may be writing."""
    store = open_store(url, readonly=True)
    try:
        with store.snapshot():
            names = Vocabulary(store).names
            keys = [user.encode() for user in users]
            return read_sketches(names, users, decode(keys, store.get(Table.USERS, keys)))
    finally:
        store.close()


def read_sketches(names: Sequence[str], users: Sequence[str], rows: Rows) -> list[UserSketch]:
    """One per user; `names` are the store's items."""
    fields = (rows.item, rows.rating, rows.time, rows.position, rows.repeats)
    columns = [column.tolist() for column in fields]
    counts = zip(*(column.tolist() for column in rows[:5]), strict=True)
    found = []
    for row, (kept, waiting, policy, seen, last) in enumerate(counts):
        slots = zip(*(column[row][: kept + waiting] for column in columns), strict=True)
        entries = tuple(Entry(names[code], *values) for code, *values in slots)
        number = last - 1 if last else None
        sketch = entries[:kept], entries[kept:]
        found.append(UserSketch(users[row], seen, policy, number, *sketch))
    return found
