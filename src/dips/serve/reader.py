"""Read sketches of users from a store. Needs no trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dips.serve.fields import parse_name
from dips.serve.records import UserRecords, decode
from dips.serve.stores.base import Table
from dips.serve.stores.registry import open_store
from dips.serve.vocabulary import ItemVocabulary


@dataclass(frozen=True)
class SketchEntry:
    """One interaction in a sketch."""

    item: str
    rating: float
    """1 where there are no ratings."""
    time: int
    """Seconds; 0 where there are no times."""
    position: int
    """Index in the user's history, from 0."""
    repeats: int
    """Repeat count: how often the item occurred while it was in the sketch."""


@dataclass(frozen=True)
class UserSketch:
    """Sketch of a user, with the state that belongs to it."""

    user: str
    seen: int
    """Number of interactions so far."""
    policy_version: int
    """Version of the policy that changed the record last; 0 where there is no record."""
    last_seq: int | None
    """Last sequence number (`seq`); None where no event had one."""
    entries: tuple[SketchEntry, ...]
    """Entries of the sketch, oldest first."""
    waiting: tuple[SketchEntry, ...] = ()
    """Interactions since the last refresh, oldest first; not part of the sketch yet."""

    @property
    def items(self) -> list[str]:
        """Items of the sketch, oldest first."""
        return [entry.item for entry in self.entries]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON.

        The keys of `policy_version` and `last_seq` are `policy` and `last`.
        """
        keys = {"policy_version": "policy", "last_seq": "last"}
        return {keys.get(name, name): value for name, value in asdict(self).items()}


def read_sketches(url: str, users: Sequence[str]) -> list[UserSketch]:
    """Read the sketches of users from a store. Another process may write to it.

    Args:
        url: URL of the store, for example `sqlite:sketches.db`.
        users: Names of the users.

    Returns:
        One sketch per user; an empty one where there is no record.

    Raises:
        ConfigError: The URL names no known kind of store.
        EventError: A name is invalid.
        StoreError: The store cannot be opened or read.
        RecordError: A record is damaged.
    """
    names = [parse_name(user, "user") for user in users]
    keys = [name.encode() for name in names]
    store = open_store(url, readonly=True)
    try:
        with store.snapshot():
            items = ItemVocabulary(store).names
            return to_sketches(names, decode(keys, store.get(Table.USERS, keys)), items)
    finally:
        store.close()


def to_sketches(
    users: Sequence[str], records: UserRecords, item_names: Sequence[str]
) -> list[UserSketch]:
    """Convert decoded records to sketches.

    Args:
        users: Names of the users.
        records: Records, one row per user.
        item_names: Item names by code.

    Returns:
        One sketch per user.
    """
    fields = (records.item, records.rating, records.time, records.position, records.repeats)
    columns = [column.tolist() for column in fields]
    kept, waiting = records.kept.tolist(), records.waiting.tolist()
    versions, seen, next_seq = (
        column.tolist() for column in (records.policy, records.seen, records.next_seq)
    )
    sketches = []
    for row, user in enumerate(users):
        present = kept[row] + waiting[row]
        slots = zip(*(column[row][:present] for column in columns), strict=True)
        entries = tuple(SketchEntry(item_names[code], *values) for code, *values in slots)
        sketches.append(
            UserSketch(
                user=user,
                seen=seen[row],
                policy_version=versions[row],
                last_seq=next_seq[row] - 1 if next_seq[row] else None,
                entries=entries[: kept[row]],
                waiting=entries[kept[row] :],
            )
        )
    return sketches
