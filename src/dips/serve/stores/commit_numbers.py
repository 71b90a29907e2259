"""Number the commits of a SQLite store, so that a missing or a foreign one is noticed.

The number of the last commit is in the database, and in the high-water mark beside it (`mark` for
short, see `dips.serve.stores.commit_mark`). They show four things:

- The mark is ahead: acknowledged commits are missing. The store is not opened.
- The database is ahead: the last commit was not acknowledged, and may be in the cache of the system
  only. It is written to the disk before the store is used.
- The number is not this process's last one: another process has written. Nothing is committed.
- The store was not closed, and there is no mark: files are missing. The store is not opened.

A closed store is one file: its commits have left the write-ahead log, and the mark is removed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, final

from dips.serve.stores.base import StoreError
from dips.serve.stores.commit_mark import Commit, CommitMark, CommitMarkError
from dips.serve.stores.database_file import DatabaseFile

CREATE = """
    CREATE TABLE state (
        store TEXT, number INTEGER, seconds INTEGER, is_closed INTEGER,
        journal_first INTEGER, journal_next INTEGER, metadata_sum INTEGER
    );
    INSERT INTO state VALUES (hex(randomblob(8)), 0, unixepoch(), 1, 0, 0, 0);
"""
"""One row: the last commit, the span of the journal, and the sum of checksums of the metadata."""


class LastCommit(NamedTuple):
    """The last commit, as the database holds it."""

    store: str
    number: int
    seconds: int
    """When it was written, in seconds since 1970."""
    is_closed: int
    """1 after the store was closed, with all commits in the database file itself."""


@final
class CommitNumbers:
    """Transactions of a SQLite store, numbered from 1 on.

    Args:
        connection: Connection to the database.
        file: The database file.
        name: URL of the store, for messages.
    """

    def __init__(self, connection: sqlite3.Connection, file: DatabaseFile, name: str) -> None:
        self._connection, self._file, self._name = connection, file, name
        self._mark = CommitMark(file.path)
        self._last: LastCommit | None = None  # of this process; None where it does not write
        self._interrupted = False
        self._is_marked_open = False  # in the database file itself, not only in the log

    def open(self, *, accept_missing: bool) -> None:
        """Check that no commit is missing, and mark the store as open for writing.

        Args:
            accept_missing: Open the store even if commits are missing.

        Raises:
            StoreError: Commits are missing, or the last one cannot be written to the disk.
        """
        fault = self.find_fault()
        if fault and not accept_missing:
            raise StoreError(fault)
        last = self._read()
        mark = None if fault else self._mark.read()
        is_durable = not fault and (mark is None or mark.number == last.number)
        if not is_durable and not self._checkpoint("FULL"):
            raise StoreError(
                f"{self._name}: its last commit may not be on the disk yet, and cannot be written "
                "there while a reader has an older snapshot open: close the reader, for example a "
                "backup, and open the store again"
            )
        self._last = last
        self._mark.write(Commit(last.store, last.number))
        self._connection.execute("BEGIN IMMEDIATE")
        self._commit(is_closed=False)
        self._is_marked_open = self._checkpoint("PASSIVE")
        self._file.remember()
        self._interrupted = False

    def transact(self, write: Callable[[], Callable[[], None]]) -> None:
        """Run `write` in one durable transaction, then the function that it returned.

        Args:
            write: Writes rows; returns the function that updates memory.

        Raises:
            StoreError: Another process has written to the store, or its files were moved.
        """
        self.check_outcome()
        if self._last is None:
            raise StoreError(f"{self._name} cannot be written: it was opened for reading")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._file.check()
            if self._read() != self._last:
                raise StoreError(
                    f"{self._name} was written to by another process: stop one of the two, and "
                    "open the store again"
                )
            update_memory = write()
            self._commit(is_closed=False)
            self._file.check()
            update_memory()
            self._interrupted = False
            if not self._is_marked_open:  # a reader had an older snapshot open
                self._is_marked_open = self._checkpoint("PASSIVE")
        finally:
            self._roll_back()

    def check_outcome(self) -> None:
        """Raise `StoreError` if the store may hold a commit that this process does not know of."""
        if self._interrupted:
            raise StoreError(
                f"{self._name}: a commit was interrupted, so it is not known whether it is "
                "durable: open the store again"
            )

    def find_fault(self) -> str:
        """Return which commits are missing, as a sentence; an empty string if none is."""
        try:
            mark, last = self._mark.read(), self._read()
            if mark is None and not last.is_closed:  # a writer may have opened it in between
                mark, last = self._mark.read(), self._read()
        except CommitMarkError as error:
            return f"{error}; {self._remedy('all events')}"
        except StoreError as error:
            return str(error)
        since = datetime.fromtimestamp(last.seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        remedy = self._remedy(f"the events since commit {last.number} ({since})")
        if mark is None:
            if last.is_closed:
                return ""
            return (
                f"{self._name} was not closed, and {self._mark.path.name} is not beside it: "
                f"commits after {last.number} may be missing; {remedy}"
            )
        if mark.store != last.store:
            return (
                f"{self._mark.path} belongs to another store, with {mark.number} commits, that was "
                f"not closed: put that store back; {self._remedy('its events')}"
            )
        if mark.number <= last.number:
            return ""
        return (
            f"{self._name} lacks commits {last.number + 1} to {mark.number}, which were "
            f"acknowledged: its write-ahead log {self._file.path.name}-wal was damaged or removed; "
            f"{remedy}"
        )

    def close(self) -> None:
        """Move all commits to the database file, and remove the mark, which is not needed then.

        If that is not possible, the mark stays, and the next process continues as after a crash.
        """
        with suppress(sqlite3.Error, StoreError, OSError):
            if self._last is not None and not self._interrupted:
                self._connection.execute("BEGIN IMMEDIATE")
                if self._read() == self._last:
                    self._commit(is_closed=True)
                    if self._checkpoint("PASSIVE"):
                        self._mark.remove()
                        self._connection.execute("PRAGMA busy_timeout = 0")
                        self._checkpoint("TRUNCATE")  # an idle reader keeps the log, now empty
        self._roll_back()
        self._mark.close()

    def _commit(self, *, is_closed: bool) -> None:
        """Commit the open transaction, and write its number to the mark."""
        assert self._last is not None
        last = self._last._replace(
            number=self._last.number + 1, seconds=int(time.time()), is_closed=int(is_closed)
        )
        query = "UPDATE state SET store = ?, number = ?, seconds = ?, is_closed = ?"
        self._connection.execute(query, last)
        self._interrupted = True
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._interrupted = False  # SQLite rolls a commit back that fails
            raise
        self._mark.write(Commit(last.store, last.number))
        self._last = last

    def _read(self) -> LastCommit:
        rows = self._connection.execute("SELECT * FROM state").fetchall()
        if len(rows) != 1 or [type(value) for value in rows[0]] != [str, *6 * [int]]:
            raise StoreError(
                f"{self._name}: the number of its last commit is damaged: restore a backup"
            )
        return LastCommit(*rows[0][:4])

    def _checkpoint(self, mode: str) -> bool:
        """Copy SQLite's write-ahead log to the database file; return whether all of it was."""
        busy, pages, copied = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return not busy and pages == copied

    def _roll_back(self) -> None:
        """Roll an open transaction back."""
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):  # after a full disk SQLite has rolled back already
                self._connection.execute("ROLLBACK")

    def _remedy(self, events: str) -> str:
        return f"restore a backup, or run 'dips store accept {self._name}' and send {events} again"
