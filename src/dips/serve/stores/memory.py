"""A store in memory: for tests, for trying things out, and as the model of what a store is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import final

from dips.serve.stores.base import Change, Table


@final
class MemoryStore:
    """Dictionaries; they last as long as the object."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Look them up."""
        rows = self._tables[table]
        return [rows.get(key) for key in keys]

    def scan(self, table: Table, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Sorted, as of now."""
        rows = self._tables[table]
        yield from sorted(pair for pair in rows.items() if pair[0].startswith(prefix))

    def commit(self, change: Change) -> None:
        """Update the dictionaries."""
        for table, rows in change.items():
            self._tables[table].update({k: v for k, v in rows.items() if v is not None})
            for key in [key for key, value in rows.items() if value is None]:
                self._tables[table].pop(key, None)

    def stage(self, change: Change) -> Callable[[], None]:
        """There is no second half."""
        self.commit(change)
        return lambda: None

    def snapshot(self) -> AbstractContextManager[None]:
        """Nobody else can write."""
        return nullcontext()

    def compact(self) -> None:
        """There are no files."""

    def verify(self) -> list[str]:
        """There are no files."""
        return []

    def stats(self) -> dict[str, int]:
        """There is nothing to watch."""
        return {}

    def close(self) -> None:
        """There is nothing to let go of."""
