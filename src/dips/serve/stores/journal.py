"""Write-ahead journal of one SQLite table: append new rows now, move them to the table later.

Writing a row at its key's place costs a page. Appending it to the rows of its commit costs only its
bytes. So each commit does two things:

- It appends its rows to the journal as one entry.
- It checkpoints a share of the older rows: it moves them to the table in order of their keys.
  Neighbours share pages, and a row that was written several times is moved once.

The writer holds rows that are not checkpointed yet in memory, too, so reading them needs no query.
Other processes find them with `dips.serve.stores.journal_index`.

Entries in the journal are numbered without a gap. The numbers of the first and the next one are
recorded with every commit, so missing entries are noticed.
"""

from __future__ import annotations

import math
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from typing import final

import numpy as np
import numpy.typing as npt

CHECKPOINT_ROWS = 65_536
"""Rows that are appended during one checkpoint round; about as many are held in memory.

Entries are deleted at the end of a round, so the journal holds up to twice as many rows. A process
that opens the file reads all of them. A commit of at least this many rows bypasses the journal.
"""
CREATE = "CREATE TABLE journal (number INTEGER PRIMARY KEY, rows BLOB NOT NULL);"
DELETED = -1
"""Length that marks a deleted row in an entry."""
SUM_BYTES, HEAD_BYTES = 4, 12
"""Bytes of a checksum; bytes of a head without lengths and hashes, which take 12 per row."""
DAMAGED = "an entry of the journal is damaged: restore a backup"

Rows = Mapping[bytes, bytes | None]
"""Rows by key. The value None deletes a row."""
Row = tuple[bytes, bytes | None]
Lengths = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint32]


class JournalError(Exception):
    """Raised when an entry cannot be written, is damaged, or is missing."""


@final
class Journal:
    """Journal of one table.

    Args:
        connection: Connection to the SQLite file; its table `state` holds the span of the journal.
        write_table: Function that writes rows to the table itself.
    """

    def __init__(self, connection: sqlite3.Connection, write_table: Callable[[Rows], None]) -> None:
        self._connection, self._write_table = connection, write_table
        self.rows: dict[bytes, bytes | None] = {}  # newest value of rows not checkpointed yet
        self._data_version = -1
        self._first = self._next = 0  # numbers of the first and the next entry; never reused
        self._queue: list[bytes] = []  # keys of this checkpoint round, moved up to `_moved`
        self._moved = self._round_start = 0  # entries from `_round_start` on belong to later rounds

    def read(self) -> None:
        """Read the entries that other processes wrote since the last call."""
        run = self._connection.execute
        (version,) = run("PRAGMA data_version").fetchone()
        if version == self._data_version:
            return
        self._first, end = read_span(self._connection)
        if self._first > self._next or len(self.rows) > 4 * CHECKPOINT_ROWS:  # some were missed
            self.rows, self._next = {}, self._first
        query = "SELECT rows FROM journal WHERE number >= ? ORDER BY number"
        for (entry,) in run(query, (self._next,)):  # the checksum detects a gap
            self.rows.update(_unpack(self._next, entry))
            self._next += 1
        if self._next != end:
            raise JournalError("entries of the journal are missing: restore a backup")
        self._data_version = version

    def append(self, rows: Rows) -> Callable[[], None]:
        """Append rows as one entry, and checkpoint a share of the older rows.

        Call this inside a transaction.

        Args:
            rows: Rows to write and to delete.

        Returns:
            Function that updates memory. Call it after the transaction was committed.
        """
        if not rows:
            return lambda: None
        if len(rows) >= CHECKPOINT_ROWS:  # so many rows share pages, and would fill the memory
            return self.checkpoint(rows)
        if self._moved >= len(self._queue):  # start the next round
            self._queue, self._moved, self._round_start = sorted(self.rows), 0, self._next
        end = self._moved + math.ceil(len(self._queue) * len(rows) / CHECKPOINT_ROWS)
        moved = {k: self.rows[k] for k in self._queue[self._moved : end] if k not in rows}
        self._write_table(moved)
        entry = self._next, _pack(self._next, rows)
        self._connection.execute("INSERT INTO journal VALUES (?, ?)", entry)
        first = self._first
        if end >= len(self._queue):  # all rows of the older entries are in the table
            first = self._round_start
            self._connection.execute("DELETE FROM journal WHERE number < ?", (first,))
        self._write_span(first, self._next + 1)

        def update_memory() -> None:
            for key in moved:
                del self.rows[key]
            self.rows.update(rows)
            self._first, self._next, self._moved = first, self._next + 1, end

        return update_memory

    def checkpoint(self, rows: Rows) -> Callable[[], None]:
        """Move all rows of the journal, and some new rows, to the table.

        Call this inside a transaction.

        Args:
            rows: New rows to write and to delete.

        Returns:
            Function that updates memory. Call it after the transaction was committed.
        """
        self._write_table({**self.rows, **rows})
        self._connection.execute("DELETE FROM journal")
        number = self._next + 1  # skip a number: readers notice that they missed rows
        self._write_span(number, number)

        def update_memory() -> None:
            self.rows, self._queue, self._first, self._next = {}, [], number, number

        return update_memory

    def merge_with(self, rows: Iterable[tuple[bytes, bytes]], prefix: bytes) -> Iterator[Row]:
        """Iterate over rows of the table in order of their keys, updated by the journal.

        Args:
            rows: Rows of the table whose key starts with `prefix`, in order of their keys.
            prefix: Only rows of the journal whose key starts with these bytes.
        """
        newest = sorted(pair for pair in self.rows.items() if pair[0].startswith(prefix))
        both = merge(newest, rows, key=itemgetter(0))  # of equal keys the journal's comes first
        return (next(pairs) for _, pairs in groupby(both, key=itemgetter(0)))

    def _write_span(self, first: int, following: int) -> None:
        span = first, following
        query = "UPDATE state SET journal_first = ?, journal_next = ?"
        self._connection.execute(query, span)


def read_span(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the numbers of the first and the next entry; equal if the journal is empty."""
    query = "SELECT journal_first, journal_next FROM state"
    ((first, following),) = connection.execute(query).fetchall() or [(None, None)]
    if not type(first) is type(following) is int:
        raise JournalError("the span of the journal is damaged: restore a backup")
    return first, following


def _pack(number: int, rows: Rows) -> bytes:
    """Return an entry: its head, and its keys and values.

    The head: checksum of head and keys, checksum of the rest of the head, number of rows, lengths
    of keys and values, hashes of keys.
    """
    try:
        lengths = [(len(k), DELETED if v is None else len(v)) for k, v in rows.items()]
        head = np.array([len(rows), *chain.from_iterable(lengths)], "<i4").tobytes()
        head += np.array([zlib.crc32(key) for key in rows], "<u4").tobytes()
        body = [part for row in rows.items() for part in row if part is not None]
    except TypeError as error:
        raise JournalError(f"keys and values must be bytes: {error}") from None
    sums = _checksum(number, head, rows), _checksum(number, head, ())
    return b"".join([*sums, head, *body])


def _unpack(number: int, entry: bytes) -> Rows:
    """Return the rows of an entry; raise `JournalError` if it is damaged."""
    try:
        content = memoryview(entry)
    except TypeError:  # a flipped bit may have changed the type of the value
        raise JournalError(DAMAGED) from None
    place = 0

    def read(length: int) -> bytes:
        nonlocal place
        place += length
        return bytes(content[place - length : place])

    lengths, _ = read_head(number, len(entry), read)
    ends = list(accumulate(np.maximum(lengths, 0).ravel().tolist(), initial=place))
    parts = [entry[start:end] for start, end in pairwise(ends)]
    keys, values = parts[::2], parts[1::2]
    head = entry[2 * SUM_BYTES : place]
    if entry[:SUM_BYTES] != _checksum(number, head, keys):
        raise JournalError(DAMAGED)
    rows: dict[bytes, bytes | None] = dict(zip(keys, values, strict=True))
    return rows | {keys[n]: None for n in np.flatnonzero(lengths[:, 1] == DELETED).tolist()}


def read_head(number: int, size: int, read: Callable[[int], bytes]) -> tuple[Lengths, Hashes]:
    """Read the head of an entry, and check it and the length of the entry.

    Args:
        number: Number of the entry.
        size: Length of the entry in bytes.
        read: Returns the next bytes of the entry, given how many.

    Returns:
        Lengths of keys and values, [rows, 2], and hashes of the keys, [rows].

    Raises:
        JournalError: The entry is damaged.
    """
    start = read(min(size, HEAD_BYTES))
    count = int.from_bytes(start[2 * SUM_BYTES :], "little")
    if HEAD_BYTES + 12 * count > size:
        raise JournalError(DAMAGED)
    rest = read(12 * count)
    head = start[2 * SUM_BYTES :] + rest
    lengths = np.frombuffer(rest, "<i4", 2 * count).reshape(count, 2)
    whole = HEAD_BYTES + len(rest) + int(np.maximum(lengths, 0).sum())
    if start[SUM_BYTES : 2 * SUM_BYTES] != _checksum(number, head, ()) or whole != size:
        raise JournalError(DAMAGED)
    return lengths, np.frombuffer(rest, "<u4", count, 8 * count)


def _checksum(number: int, head: bytes, keys: Iterable[bytes]) -> bytes:
    """Return the checksum of head and keys, without values: each record has its own checksum."""
    return zlib.crc32(b"".join(keys), zlib.crc32(head, number)).to_bytes(SUM_BYTES, "little")
