"""A store in one SQLite file: write-ahead log, every commit on the disk before it returns.

One process writes, guarded by a lock file; any number may read meanwhile. Records go by a journal.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import final

from dips.serve.stores.journal import CREATE, Journal, JournalError
from dips.serve.stores.base import Change, StoreError, Table

FORMAT = 2
"""Version of the tables, kept in `user_version`; the first one had no journal."""
MARK = 0x64697073
"""`application_id`: says that a file is a store of ours."""
CACHE_KIB = 64 * 1024
"""Memory for pages of the file."""
ASKED = 500
"""Keys in one statement."""
PIECE = 4096
"""Rows that a scan holds at a time."""


@final
class SqliteStore:
    """Tables of bytes in one file; `PATH.lock` beside it names the process that writes."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._staged: Change = {}
        if readonly and not path.exists():
            raise StoreError(f"sqlite:{path}: there is no such store; make one with 'dips stream'")
        self._lock = None if readonly else _claim(path)
        try:
            with self._told("opened"):
                self._open(readonly)
        except BaseException:
            self._release()
            raise

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Many keys in one statement; not those that memory holds."""
        found: dict[bytes, bytes] = {}
        with self._told("read"), self._one_moment():
            ahead = self._ahead(table, keys)
            asked = sorted(key for key in keys if key not in ahead)  # neighbours share pages
            for start in range(0, len(asked), ASKED):
                piece = asked[start : start + ASKED]
                marks = ",".join("?" * len(piece))
                query = f"SELECT key, value FROM {table} WHERE key IN ({marks})"
                found.update(self._pairs(table, query, piece))
        if table is not Table.USERS:  # records have a checksum of their own
            found = {key: self._unsealed(table, key, value) for key, value in found.items()}
        return [ahead[key] if key in ahead else found.get(key) for key in keys]

    def scan(self, table: Table, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """In pieces, so that writing may go on meanwhile."""
        rows = self._rows(table, prefix)
        if table is not Table.USERS:
            yield from rows
            return
        with self._told("read"), self._one_moment():
            newest = self._journal.over(rows, prefix)
        yield from ((key, value) for key, value in newest if value is not None)

    def commit(self, change: Change) -> None:
        """One transaction, synchronised to the disk."""
        self.stage(change)()

    def stage(self, change: Change) -> Callable[[], None]:
        """In memory, for reads; the transaction is the second half."""
        self._staged = change
        return self._end

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A reading transaction."""
        with self._told("read"):
            self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.execute("ROLLBACK")

    def compact(self) -> None:
        """Write the file anew, and empty journal and log: nothing of what was deleted stays."""
        with self._told("compacted"):
            self._change(partial(self._journal.empty, {}))
            self.connection.execute("VACUUM")
            (busy, *_) = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StoreError(
                f"sqlite:{self.path} is being read: what was deleted is still in its log; "
                "compact it again when no reader is in the middle of something"
            )

    def verify(self) -> list[str]:
        """What SQLite finds when it looks at every page."""
        try:
            found = self.connection.execute("PRAGMA integrity_check").fetchall()
        except (sqlite3.Error, UnicodeError) as error:
            return [f"{self.path}: {error}"]
        return [f"{self.path}: {row[0]}" for row in found if row[0] != "ok"]

    def stats(self) -> dict[str, int]:
        """Records that are held in memory, and are in the journal only."""
        with self._told("read"), self._one_moment():
            return {"journal": len(self._journal.newest)}

    def close(self) -> None:
        """Move the log into the file, and let go."""
        self.connection.close()
        self._release()

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
        mark = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        if mark != MARK or not 1 <= version <= FORMAT:
            filled = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if mark or version or filled or readonly:
                raise StoreError(f"sqlite:{self.path} is not a store of this version of dips")
        self._journal = Journal(self.connection, partial(self._write, Table.USERS))
        if not readonly:
            if version < FORMAT:
                self._create(Table if version == 0 else ())
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = FULL")
            self._journal.read()

    def _create(self, tables: Iterable[Table]) -> None:
        made = "".join(
            f"CREATE TABLE {name} (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
            for name in tables
        )
        marks = f"PRAGMA application_id = {MARK}; PRAGMA user_version = {FORMAT};"
        self.connection.executescript(f"BEGIN IMMEDIATE; {made} {CREATE}; {marks} COMMIT;")

    def _end(self) -> None:
        try:
            with self._told("written"):
                self._change(self._write_all)
        finally:
            self._staged = {}

    def _change(self, write: Callable[[], Callable[[], None]]) -> None:
        """One transaction, and what follows when it has ended well; a failed one leaves nothing."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            self._journal.read()
            adopt = write()
            self.connection.execute("COMMIT")
            adopt()
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has rolled back already
                self.connection.execute("ROLLBACK")
            self._journal.doubt()  # a signal may have come between COMMIT and what follows
            raise

    def _write_all(self) -> Callable[[], None]:
        """What is staged; records go by the journal."""
        for table, rows in self._staged.items():
            if table is not Table.USERS:
                self._write(table, rows)
        return self._journal.append(self._staged.get(Table.USERS, {}))

    def _ahead(self, table: Table, keys: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        """Which of these are newer in memory than in the table."""
        staged = self._staged.get(table, {})
        if table is not Table.USERS:
            return staged
        newest = self._journal.newest
        ahead = {key: newest[key] for key in keys if key in newest}
        return {**ahead, **{key: staged[key] for key in keys if key in staged}}

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """Table and journal belong together; memory is brought up to date."""
        alone = self._lock is not None  # nobody else writes
        with nullcontext() if alone or self.connection.in_transaction else self.snapshot():
            self._journal.read()
            yield

    def _rows(self, table: Table, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        query = f"SELECT key, value FROM {table} WHERE key >= ? ORDER BY key LIMIT {PIECE}"
        start = prefix
        while True:
            with self._told("read"):
                piece = self._pairs(table, query, (start,))
            for key, value in piece:
                if not key.startswith(prefix):
                    return
                yield key, self._unsealed(table, key, value)
            if len(piece) < PIECE:
                return
            start = piece[-1][0] + b"\0"  # the next key there can be

    def _pairs(self, table: Table, query: str, given: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """What a query finds; where a bit was flipped, it may be no bytes."""
        found = self.connection.execute(query, given).fetchall()
        if not all(type(key) is type(value) is bytes for key, value in found):
            raise self._damaged(table)
        return found

    def _write(self, table: Table, rows: Mapping[bytes, bytes | None]) -> None:
        pairs = sorted(rows.items(), key=itemgetter(0))  # neighbours share pages
        put = f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
        filled = [(key, value) for key, value in pairs if value is not None]
        if table is not Table.USERS:  # records have a checksum of their own
            filled = [(key, value + _seal(key, value)) for key, value in filled]
        self.connection.executemany(put, filled)
        gone = [(key,) for key, value in pairs if value is None]
        self.connection.executemany(f"DELETE FROM {table} WHERE key = ?", gone)

    def _unsealed(self, table: Table, key: bytes, value: bytes) -> bytes:
        if table is Table.USERS:
            return value
        if value[-4:] != _seal(key, value[:-4]):
            raise self._damaged(table)
        return value[:-4]

    def _damaged(self, table: Table) -> StoreError:
        return StoreError(f"sqlite:{self.path}: a row of {table} is damaged: restore a backup")

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn SQLite's errors into sentences."""
        try:
            yield
        except (sqlite3.Error, JournalError, UnicodeError) as error:  # SQLite quotes bytes
            raise StoreError(f"sqlite:{self.path} cannot be {what}: {error}") from error

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _seal(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(4, "little")


def _claim(path: Path) -> int:
    """Become the only process that writes; the system lets go of the lock when a process dies."""
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
