"""Keep a store in one SQLite file. A commit is on the disk before it returns.

One process writes, guarded by a lock on the file; any number may read at the same time.

- `dips.serve.stores.database_file` holds the lock.
- `dips.serve.stores.commit_numbers` runs the transactions, and notices commits that are missing.
- `dips.serve.stores.journal` writes the records of users.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import final

from dips.serve.stores import commit_mark, commit_numbers, database_file, journal
from dips.serve.stores.base import Change, StoreError, Table
from dips.serve.stores.commit_numbers import CommitNumbers
from dips.serve.stores.database_file import DatabaseFile
from dips.serve.stores.journal import Journal, JournalError
from dips.serve.stores.journal_index import JournalIndex

FORMAT = 4
"""Version of the tables, kept in `user_version`."""
APPLICATION_ID = 0x64697073
"""`application_id` of SQLite: marks the file as a store of dips."""
CACHE_KIB = 64 * 1024
"""Memory for pages of the file, in KiB."""
LOG_BYTES = 64 << 20
"""Most bytes of SQLite's write-ahead log, but for a long read: then it grows, and shrinks after."""
KEYS_PER_QUERY = 500
"""Most keys in one statement."""
SCAN_ROWS = 4096
"""Rows that a scan reads at a time."""
WAIT_SECONDS = 10.0
"""Longest wait for a lock of SQLite that another process holds."""


@final
class SqliteStore:
    """Store in one SQLite file.

    While it is open for writing, and after a crash, the files of SQLite and the mark `PATH.commits`
    are beside it.

    Args:
        path: The SQLite file; created where it does not exist.
        readonly: Open an existing file for reading only.
        accept_missing: Open the file for writing even if acknowledged commits are missing.

    Raises:
        StoreError: The file cannot be opened, is not a store, lacks commits, or another process
            writes to it.
    """

    def __init__(self, path: Path, *, readonly: bool = False, accept_missing: bool = False) -> None:
        self.path = path
        self._staged: Change = {}
        if readonly and not path.exists():
            raise StoreError(f"sqlite:{path}: there is no such store; make one with 'dips stream'")
        self._is_writer = not readonly
        with ExitStack() as opened, self._errors("opened"):
            self._file = DatabaseFile(path, create=self._is_writer)
            opened.callback(self._file.close)
            if self._is_writer:
                self._file.lock()
            self.connection = self._connect()
            opened.callback(self.connection.close)
            self._journal = Journal(self.connection, partial(self._write, Table.USERS))
            self._index = JournalIndex(self.connection)
            self._numbers = CommitNumbers(self.connection, self._file, f"sqlite:{path}")
            opened.callback(self._numbers.close)
            self._prepare()
            if self._is_writer:
                self._numbers.open(accept_missing=accept_missing)
                self._journal.read()
            self._opened = opened.pop_all()

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of some keys, None where a key does not exist."""
        found: dict[bytes, bytes] = {}
        with self._errors("read"), self._consistent_read():
            newer = self._newer_rows(table, keys)
            missing = sorted(key for key in keys if key not in newer)  # neighbours share pages
            for start in range(0, len(missing), KEYS_PER_QUERY):
                chunk = missing[start : start + KEYS_PER_QUERY]
                marks = ",".join("?" * len(chunk))
                query = f"SELECT key, value FROM {table} WHERE key IN ({marks})"
                found.update(self._query(table, query, chunk))
        if table is not Table.USERS:  # a record has its own checksum
            found = {key: self._checked(table, key, value) for key, value in found.items()}
        return [newer[key] if key in newer else found.get(key) for key in keys]

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
            if self.connection.in_transaction:  # after an I/O error SQLite has rolled back
                self.connection.execute("ROLLBACK")

    def reader(self) -> SqliteStore:
        """Open the file a second time, for reading only."""
        return SqliteStore(self.path, readonly=True)

    def compact(self) -> None:
        """Rewrite the file, and empty the journal and SQLite's write-ahead log."""
        with self._errors("compacted"):
            self._numbers.transact(partial(self._journal.checkpoint, {}))
            self.connection.execute("VACUUM")
            (busy, *_) = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StoreError(
                f"sqlite:{self.path} is being read, so deleted rows are still in its write-ahead "
                "log: compact it again when no reader has a snapshot open"
            )

    def verify(self) -> list[str]:
        """Return what is wrong: damaged pages, missing commits, rows or entries of the journal."""
        faults: list[str] = []
        try:
            with self._errors("read"):
                for fault in self._find_faults():
                    faults.append(fault)
        except StoreError as error:
            faults.append(str(error))
        return faults

    def stats(self) -> dict[str, int]:
        """Return the number of records in the journal, which are also held in memory."""
        with self._errors("read"), self._consistent_read():
            self._journal.read()
            return {"journal": len(self._journal.rows)}

    def owns(self, path: Path) -> bool:
        """Return whether a path leads to the database, or to a file that belongs to it."""
        suffixes = (*database_file.SQLITE_FILES, commit_mark.SUFFIX)
        files = [self._file.path.with_name(self._file.path.name + suffix) for suffix in suffixes]
        there = path.resolve()
        return there in files or any(
            there.exists() and file.exists() and there.samefile(file) for file in files
        )

    def close(self) -> None:
        """Close the file and release the lock."""
        self._opened.close()

    def _connect(self) -> sqlite3.Connection:
        mode = "rwc" if self._is_writer else "ro"
        return sqlite3.connect(
            f"{self._file.path.as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=WAIT_SECONDS,
        )

    def _prepare(self) -> None:
        """Check that the file is a store; create the tables of a new one."""
        run = self.connection.execute
        run(f"PRAGMA cache_size = -{CACHE_KIB}")
        application = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        if application == APPLICATION_ID and 1 <= version < FORMAT:
            raise StoreError(
                f"sqlite:{self.path} was written by an older dips, which this version cannot "
                "read: stream the events into a new store"
            )
        if application != APPLICATION_ID or version != FORMAT:
            tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application or version or tables or not self._is_writer:
                raise StoreError(f"sqlite:{self.path} is not a store of this version of dips")
            self._create()
        if self._is_writer:
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = FULL")
            run(f"PRAGMA journal_size_limit = {LOG_BYTES}")

    def _create(self) -> None:
        tables = "".join(
            f"CREATE TABLE {name} (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
            for name in Table
        )
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
        tables += commit_numbers.CREATE + journal.CREATE
        self.connection.executescript(f"BEGIN IMMEDIATE; {tables} {marks} COMMIT;")

    def _commit_staged(self) -> None:
        try:
            with self._errors("written"):
                self._numbers.transact(self._write_staged)
        finally:
            self._staged = {}

    def _write_staged(self) -> Callable[[], None]:
        """Write the staged change; records of users go to the journal."""
        for table, rows in self._staged.items():
            if table is Table.METADATA:
                self._write_metadata(rows)
            elif table is not Table.USERS:
                self._write(table, rows)
        return self._journal.append(self._staged.get(Table.USERS, {}))

    def _newer_rows(self, table: Table, keys: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        """Return the rows that are newer than in the table: staged, or in the journal."""
        staged = self._staged.get(table, {})
        if table is not Table.USERS:
            return staged
        if not self._is_writer:
            return self._index.find(keys)
        self._journal.read()
        journal = self._journal.rows
        newer = {key: journal[key] for key in keys if key in journal}
        return {**newer, **{key: staged[key] for key in keys if key in staged}}

    @contextmanager
    def _consistent_read(self) -> Iterator[None]:
        """Read table and journal as of the same commit."""
        self._numbers.check_outcome()
        if not self._is_writer:  # a writer checks every commit
            self._file.check_path()
        is_alone = self._is_writer  # then no other process writes
        with nullcontext() if is_alone or self.connection.in_transaction else self.snapshot():
            yield

    def _find_faults(self) -> Iterator[str]:
        """Check the pages, and compare the tables with what the last commit recorded of them."""
        for (fault,) in self.connection.execute("PRAGMA integrity_check").fetchall():
            if fault != "ok":
                yield f"sqlite:{self.path}: {fault}"
        if fault := self._numbers.find_fault():
            yield fault
        with self._consistent_read():
            self._journal.read()
            (recorded,) = self.connection.execute("SELECT metadata_sum FROM state").fetchone()
            found = sum(_sum(_checksum(*row)) for row in self._rows(Table.METADATA, b""))
            if found != recorded:
                yield f"sqlite:{self.path}: rows of metadata are missing: restore a backup"

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

    def _write_metadata(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Write rows of the metadata, and record how the sum of their checksums changes."""
        before = self._sum_metadata(rows)
        self._write(Table.METADATA, rows)
        change = self._sum_metadata(rows) - before
        self.connection.execute("UPDATE state SET metadata_sum = metadata_sum + ?", (change,))

    def _sum_metadata(self, keys: Iterable[bytes]) -> int:
        query = f"SELECT key, value FROM {Table.METADATA} WHERE key = ?"
        found = (self._query(Table.METADATA, query, (key,)) for key in keys)
        return sum(_sum(value[-4:]) for rows in found for _, value in rows)

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
        """Raise errors of SQLite and of files as `StoreError`; `action` is a past participle."""
        try:
            yield
        except (sqlite3.Error, JournalError, OSError, UnicodeError) as error:  # raw bytes, quoted
            raise StoreError(f"sqlite:{self.path} cannot be {action}: {error}") from error


def _checksum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(4, "little")


def _sum(checksum: bytes) -> int:
    """Return a checksum as a number, to be added to others."""
    return int.from_bytes(checksum, "little")
