"""What a store is: a few tables of bytes, changed atomically. Knows nothing of what they hold.

Another store fits when it passes `tests/serve/test_stores.py` and the crash suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from dips.errors import ConfigError, DipsError

RESTORING = b"restoring"
"""A fact that is there while a store is being restored."""


class StoreError(DipsError):
    """A store that cannot be opened, read or written."""


class Table(StrEnum):
    """The tables of a store."""

    USERS = "users"
    """User's name -> record."""
    FACTS = "facts"
    """What the store knows of itself: vocabulary, policies, counts, who was forgotten."""
    IDS = "ids"
    """Event id -> place in the order of arrival."""
    PLACES = "places"
    """Place -> event id: the same the other way round, to drop the oldest."""


Change = Mapping[Table, Mapping[bytes, bytes | None]]
"""What a commit writes; None deletes."""


class Store(Protocol):
    """A few tables of bytes."""

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of these keys, None where there is none."""

    def scan(self, table: Table, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All keys with this prefix and their values, in order of the keys."""

    def commit(self, change: Change) -> None:
        """Write all of it or nothing; what was written is durable when this returns."""

    def stage(self, change: Change) -> Callable[[], None]:
        """The first half of a commit: from now on `get` of this object sees it.

        What is returned is the second half, which writes, once and in any thread; nothing may be
        asked of the store meanwhile. Where it fails, nothing was written.
        """

    def snapshot(self) -> AbstractContextManager[None]:
        """While it is open, reads see one moment."""

    def compact(self) -> None:
        """Give back the room of what was deleted, so that no trace of it is left in the files."""

    def verify(self) -> list[str]:
        """What is wrong with the store's own files; nothing in the best case."""

    def stats(self) -> dict[str, int]:
        """What there is to watch of the store itself, by name."""

    def close(self) -> None:
        """Let go of files and locks."""


def open_store(url: str, *, readonly: bool = False) -> Store:
    """The store at `memory:` or `sqlite:PATH`; one process may write to it, any number read."""
    kind, _, place = url.partition(":")
    if kind == "memory" and not place:
        from dips.serve.stores.memory import MemoryStore

        return MemoryStore()
    if kind == "sqlite" and place:
        from dips.serve.stores.sqlite import SqliteStore

        return SqliteStore(Path(place), readonly=readonly)
    raise ConfigError(f"store '{url}': choose memory: or sqlite:PATH, for example sqlite:users.db")
