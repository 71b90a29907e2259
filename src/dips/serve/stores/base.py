"""Define what a store is: four tables of bytes with one atomic commit.

Knows nothing of what the bytes mean. A new store must pass `tests/serve/stores/test_stores.py` and
the crash tests (`make crash`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from dips.errors import DipsError

COUNTERS = b"counters"
"""Metadata key of the counters, as JSON."""
ID_COUNT = b"id_count"
"""Metadata key: number of event ids so far, also those that have left the window."""
RESTORING = b"restoring"
"""Metadata key that exists while a backup is being restored into the store."""


class StoreError(DipsError):
    """Raised when a store cannot be opened, read or written."""


class Table(StrEnum):
    """Tables of a store."""

    USERS = "users"
    """User name -> record of the user's sketch."""
    METADATA = "metadata"
    """Item vocabulary, versions, counters, source offsets and tombstones."""
    EVENT_IDS = "event_ids"
    """Hash of an event id -> its number in order of arrival."""
    ID_ORDER = "id_order"
    """Number in order of arrival -> hash of the event id; used to remove the oldest ids."""


Change = Mapping[Table, Mapping[bytes, bytes | None]]
"""Rows that a commit writes, by table and key. The value None deletes a row."""


class Store(Protocol):
    """Interface of a store. One process writes; several may read.

    Example:
        >>> from dips.serve.stores.registry import open_store
        >>> store = open_store("memory:")
        >>> store.commit({Table.USERS: {b"alice": b"record"}})
        >>> store.get(Table.USERS, [b"alice", b"bob"])
        [b'record', None]
    """

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of some keys.

        Args:
            table: Table to read.
            keys: Keys to look up.

        Returns:
            One value per key; None where the key does not exist.

        Raises:
            StoreError: The table cannot be read, or a row is damaged.
        """

    def scan(self, table: Table, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows of a table in order of their keys.

        Args:
            table: Table to read.
            prefix: Only keys that start with these bytes.

        Returns:
            Pairs of key and value.

        Raises:
            StoreError: The table cannot be read, or a row is damaged.
        """

    def commit(self, change: Change) -> None:
        """Write all rows of a change atomically. They are durable when this returns.

        Args:
            change: Rows to write and to delete.

        Raises:
            StoreError: The change could not be written. Then none of it was written.
        """

    def stage(self, change: Change) -> Callable[[], None]:
        """Make a change visible to `get` of this object, before it is written.

        Args:
            change: Rows to write and to delete.

        Returns:
            Function that writes the change and makes it durable. Call it once, from any thread.
            Do not use the store while it runs. If it raises, nothing was written.
        """

    def snapshot(self) -> AbstractContextManager[None]:
        """Open a read transaction: all reads inside the context see the same commit."""

    def reader(self) -> Store:
        """Open this store a second time, for reading in other threads while this object writes.

        Only commits that are durable are visible in it. The caller closes it.
        """

    def compact(self) -> None:
        """Rewrite the files, so that they hold no bytes of deleted rows.

        Raises:
            StoreError: The files could not be rewritten, for example because of an open snapshot.
        """

    def verify(self) -> list[str]:
        """Return what is wrong with the files of the store, one sentence each.

        Call it outside of a snapshot.
        """

    def owns(self, path: Path) -> bool:
        """Return whether a path leads to a file of the store, which nothing else may write to."""

    def stats(self) -> dict[str, int]:
        """Return counters of the store itself, by name."""

    def close(self) -> None:
        """Release files and locks."""


def check_restored(store: Store) -> None:
    """Raise `StoreError` if a restore into a store was interrupted."""
    if store.get(Table.METADATA, [RESTORING]) != [None]:
        raise StoreError(
            "a restore into this store was interrupted: restore the backup into a new store"
        )
