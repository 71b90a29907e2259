"""Keep a store in memory: for tests and trials. Also the reference of how a store behaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import final

from dips.serve.stores.base import Change, Table


@final
class MemoryStore:
    """Store in dictionaries. The data is lost when the object is."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        self._lock = threading.Lock()

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of some keys, None where a key does not exist."""
        rows = self._tables[table]
        with self._lock:
            return [rows.get(key) for key in keys]

    def scan(self, table: Table, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows whose key starts with a prefix, in order of their keys."""
        with self._lock:
            rows = sorted(r for r in self._tables[table].items() if r[0].startswith(prefix))
        yield from rows

    def commit(self, change: Change) -> None:
        """Update the dictionaries."""
        with self._lock:
            for table, rows in change.items():
                self._tables[table].update({k: v for k, v in rows.items() if v is not None})
                for key in [key for key, value in rows.items() if value is None]:
                    self._tables[table].pop(key, None)

    def stage(self, change: Change) -> Callable[[], None]:
        """Commit at once; return a function that does nothing."""
        self.commit(change)
        return lambda: None

    def snapshot(self) -> AbstractContextManager[None]:
        """Return an empty context: no other process can write."""
        return nullcontext()

    def reader(self) -> MemoryStore:
        """Return this store: each commit and each read holds its lock."""
        return self

    def compact(self) -> None:
        """Do nothing: there are no files."""

    def verify(self) -> list[str]:
        """Return an empty list: there are no files."""
        return []

    def owns(self, path: Path) -> bool:
        """Return False: there are no files."""
        return False

    def stats(self) -> dict[str, int]:
        """Return no counters."""
        return {}

    def close(self) -> None:
        """Do nothing: there are no files."""
