"""Keep a store in one SQLite file. A commit is on the disk before it returns.

One process writes, guarded by a lock file; any number of processes may read at the same time.
Records of users are written through the journal of `dips.serve.stores.journal`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import final
from weakref import WeakSet

from dips.serve.stores.base import Change, StoreError, Table
from dips.serve.stores.journal import CREATE, Journal, JournalError
from dips.serve.stores.journal_index import JournalIndex

FORMAT = 4
"""Version of the tables, kept in `user_version`."""
APPLICATION_ID = 0x64697073
"""`application_id` of SQLite: marks the file as a store of dips."""
CACHE_KIB = 64 * 1024
"""Memory for pages of the file, in KiB."""
KEYS_PER_QUERY = 500
"""Most keys in one statement."""
SCAN_ROWS = 4096
"""Rows that a scan reads at a time."""


@final
class SqliteStore:
    """Store in one SQLite file. The lock file `PATH.lock` beside it belongs to the writer.

    Args:
        path: The SQLite file; created where it does not exist.
        readonly: Open an existing file for reading only.

    Raises:
        StoreError: The file cannot be opened, is not a store, or another process writes to it.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._staged: Change = {}
        if readonly and not path.exists():
            raise StoreError(f"sqlite:{path}: there is no such store; make one with 'dips stream'")
        self._lock = None if readonly else _acquire_lock(path)
        try:
            with self._errors("opened"):
                self._open(readonly)
        except BaseException:
            self._release_lock()
            raise
        _OPEN.add(self)

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of some keys, None where a key does not exist."""
        found: dict[bytes, bytes] = {}
        with self._errors("read"), self._consistent_read():
            memory = self._newer_rows(table, keys)
            missing = sorted(key for key in keys if key not in memory)  # neighbours share pages
            for start in range(0, len(missing), KEYS_PER_QUERY):
                chunk = missing[start : start + KEYS_PER_QUERY]
                marks = ",".join("?" * len(chunk))
                query = f"SELECT key, value FROM {table} WHERE key IN ({marks})"
                found.update(self._query(table, query, chunk))
        if table is not Table.USERS:  # a record has its own checksum
            found = {key: self._checked(table, key, value) for key, value in found.items()}
        return [memory[key] if key in memory else found.get(key) for key in keys]

    def scan(self, table: Table, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows whose key starts with a prefix, in order of their keys.

        Rows are read in chunks, so that commits may happen in between.
        """
        rows = self._rows(table, prefix)
        if table is not Table.USERS:
            yield from rows
            return
        with self._errors("read"), self._consistent_read():
            self._journal.read()
            newest = self._journal.merge_with(rows, prefix)
        yield from ((key, value) for key, value in newest if value is not None)

    def commit(self, change: Change) -> None:
        """Write a change in one transaction, synchronised to the disk."""
        self.stage(change)()

    def stage(self, change: Change) -> Callable[[], None]:
        """Hold a change in memory for `get`; return the function that runs the transaction."""
        self._staged = change
        return self._commit_staged

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Open a read transaction: all reads inside the context see the same commit."""
        with self._errors("read"):
            self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.execute("ROLLBACK")

    def reader(self) -> SqliteStore:
        """Open the file a second time, for reading only."""
        return SqliteStore(self.path, readonly=True)

    def compact(self) -> None:
        """Rewrite the file, and empty the journal and SQLite's write-ahead log."""
        with self._errors("compacted"):
            self._transact(partial(self._journal.checkpoint, {}))
            self.connection.execute("VACUUM")
            (busy, *_) = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StoreError(
                f"sqlite:{self.path} is being read, so deleted rows are still in its write-ahead "
                "log: compact it again when no reader has a snapshot open"
            )

    def verify(self) -> list[str]:
        """Return what SQLite's integrity check finds in the pages of the file."""
        try:
            found = self.connection.execute("PRAGMA integrity_check").fetchall()
        except (sqlite3.Error, UnicodeError) as error:
            return [f"{self.path}: {error}"]
        return [f"{self.path}: {row[0]}" for row in found if row[0] != "ok"]

    def stats(self) -> dict[str, int]:
        """Return the number of records in the journal, which are also held in memory."""
        with self._errors("read"), self._consistent_read():
            self._journal.read()
            return {"journal": len(self._journal.rows)}

    def close(self) -> None:
        """Close the file and release the lock."""
        self.connection.close()
        self._release_lock()

    def _open(self, readonly: bool) -> None:
        mode = "ro" if readonly else "rwc"
        self.connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=10.0,
        )
        run = self.connection.execute
        run(f"PRAGMA cache_size = -{CACHE_KIB}")
        application = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        if application == APPLICATION_ID and 1 <= version < FORMAT:
            raise StoreError(
                f"sqlite:{self.path} was written by an older dips, which this version cannot "
                "read: stream the events into a new store"
            )
        is_new = False
        if application != APPLICATION_ID or version != FORMAT:
            tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
            is_new = not (application or version or tables or readonly)
            if not is_new:
                raise StoreError(f"sqlite:{self.path} is not a store of this version of dips")
        self._journal = Journal(self.connection, partial(self._write, Table.USERS))
        self._index = JournalIndex(self.connection)
        if not readonly:
            if is_new:
                self._create()
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = FULL")
            self._journal.read()

    def _create(self) -> None:
        tables = "".join(
            f"CREATE TABLE {name} (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
            for name in Table
        )
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
        self.connection.executescript(f"BEGIN IMMEDIATE; {tables} {CREATE}; {marks} COMMIT;")

    def _commit_staged(self) -> None:
        try:
            with self._errors("written"):
                self._transact(self._write_staged)
        finally:
            self._staged = {}

    def _transact(self, write: Callable[[], Callable[[], None]]) -> None:
        """Run `write` in one transaction, then the function that it returned."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            self._journal.read()
            update_memory = write()
            self.connection.execute("COMMIT")
            update_memory()
        except BaseException:
            with suppress(sqlite3.Error):  # after a full disk SQLite has rolled back already
                self.connection.execute("ROLLBACK")
            self._journal.invalidate()  # a signal may arrive between COMMIT and the update
            raise

    def _write_staged(self) -> Callable[[], None]:
        """Write the staged change; records of users go to the journal."""
        for table, rows in self._staged.items():
            if table is not Table.USERS:
                self._write(table, rows)
        return self._journal.append(self._staged.get(Table.USERS, {}))

    def _newer_rows(self, table: Table, keys: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        """Return the rows that are newer than in the table: staged, or in the journal."""
        staged = self._staged.get(table, {})
        if table is not Table.USERS:
            return staged
        if self._lock is None:  # a reader
            return self._index.find(keys)
        self._journal.read()
        journal = self._journal.rows
        newer = {key: journal[key] for key in keys if key in journal}
        return {**newer, **{key: staged[key] for key in keys if key in staged}}

    @contextmanager
    def _consistent_read(self) -> Iterator[None]:
        """Read table and journal as of the same commit."""
        is_writer = self._lock is not None  # then no other process writes
        with nullcontext() if is_writer or self.connection.in_transaction else self.snapshot():
            yield

    def _rows(self, table: Table, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        query = f"SELECT key, value FROM {table} WHERE key >= ? ORDER BY key LIMIT {SCAN_ROWS}"
        start = prefix
        while True:
            with self._errors("read"):
                chunk = self._query(table, query, (start,))
            for key, value in chunk:
                if not key.startswith(prefix):
                    return
                yield key, self._checked(table, key, value)
            if len(chunk) < SCAN_ROWS:
                return
            start = chunk[-1][0] + b"\0"  # the smallest key after the last one

    def _query(self, table: Table, query: str, given: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the rows of a query; a flipped bit may have changed the type of a value."""
        found = self.connection.execute(query, given).fetchall()
        if not all(type(key) is type(value) is bytes for key, value in found):
            raise self._damaged(table)
        return found

    def _write(self, table: Table, rows: Mapping[bytes, bytes | None]) -> None:
        pairs = sorted(rows.items(), key=itemgetter(0))  # neighbours share pages
        put = f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
        written = [(key, value) for key, value in pairs if value is not None]
        if table is not Table.USERS:  # a record has its own checksum
            written = [(key, value + _checksum(key, value)) for key, value in written]
        self.connection.executemany(put, written)
        deleted = [(key,) for key, value in pairs if value is None]
        self.connection.executemany(f"DELETE FROM {table} WHERE key = ?", deleted)

    def _checked(self, table: Table, key: bytes, value: bytes) -> bytes:
        """Check and remove the checksum of a value; records of users have their own."""
        if table is Table.USERS:
            return value
        if value[-4:] != _checksum(key, value[:-4]):
            raise self._damaged(table)
        return value[:-4]

    def _damaged(self, table: Table) -> StoreError:
        return StoreError(f"sqlite:{self.path}: a row of {table} is damaged: restore a backup")

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Raise errors of SQLite as `StoreError`; `action` is a past participle."""
        try:
            yield
        except (sqlite3.Error, JournalError, UnicodeError) as error:  # SQLite quotes raw bytes
            raise StoreError(f"sqlite:{self.path} cannot be {action}: {error}") from error

    def _release_lock(self) -> None:
        """Close the lock file; in a forked child this leaves the lock to the parent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


_OPEN: WeakSet[SqliteStore] = WeakSet()
"""Open stores. A forked child releases their locks: it must not outlive the writer with them."""


def _release_locks() -> None:
    for store in _OPEN:
        store._release_lock()


os.register_at_fork(after_in_child=_release_locks)


def _checksum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(4, "little")


def _acquire_lock(path: Path) -> int:
    """Lock the store for writing; the system releases the lock when the process ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"sqlite:{path} cannot be opened: {error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreError(f"sqlite:{path} is in use: another process writes to it") from None
    return lock
