"""The newest rows of a table in SQLite: appended commit by commit, put where they belong later.

A row that is put where its key belongs costs a page; appended with the others of its commit it
costs its bytes. So a commit appends its rows as one entry, and moves a share of the rows of earlier
ones to the table, in order of their keys: neighbours share pages, and what is written again
meanwhile is moved once. All that is not moved yet is held in memory, too, and is not looked up.
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

SPAN = 65_536
"""Rows that are appended while all that wait are moved: so about as many wait, at most.

Entries go when a round ends, so there are up to twice as many rows in them; who opens the file
waits with all of these at first. A commit of so many rows puts them where they belong at once.
"""
CREATE = "CREATE TABLE journal (place INTEGER PRIMARY KEY, rows BLOB NOT NULL)"
GONE = -1
"""Stands in the place of a length where a row is deleted."""

Rows = Mapping[bytes, bytes | None]
"""What is written; None deletes."""
Row = tuple[bytes, bytes | None]


class JournalError(Exception):
    """An entry that cannot be written, or is not what was written."""


@final
class Journal:
    """What was written lately to one table; `put` writes rows where they belong."""

    def __init__(self, connection: sqlite3.Connection, put: Callable[[Rows], None]) -> None:
        self._connection, self._put = connection, put
        self.newest: dict[bytes, bytes | None] = {}
        self._version = -1
        self._place = 0  # of the next entry: they are counted for ever
        self._queue: list[bytes] = []  # what is moved in this round, up to `_at` it has been
        self._at = self._first = 0  # entries from `_first` on came after the round began

    def read(self) -> None:
        """Bring memory up to date, where another process has written since."""
        run = self._connection.execute
        (version,) = run("PRAGMA data_version").fetchone()
        if version == self._version or not _there(self._connection):
            return
        (oldest,) = run("SELECT coalesce(min(place), 0) FROM journal").fetchone()
        if oldest > self._place or len(self.newest) > 4 * SPAN:  # some were missed, or it is late
            self.newest, self._place = {}, oldest
        query = "SELECT rows FROM journal WHERE place >= ? ORDER BY place"
        for (entry,) in run(query, (self._place,)):  # one that is missing in between is noticed
            self.newest.update(_unpacked(self._place, entry))
            self._place += 1
        self._version = version

    def doubt(self) -> None:
        """Nobody knows how a transaction has ended: read everything anew when it is needed."""
        self.newest, self._queue, self._place, self._version = {}, [], 0, -1

    def append(self, rows: Rows) -> Callable[[], None]:
        """Within a transaction: write these rows, and move some that wait.

        What is returned has to be called when the transaction has ended well.
        """
        if not rows:
            return lambda: None
        if len(rows) >= SPAN:  # so many share pages anyway, and memory need not hold them
            return self.empty(rows)
        if self._at >= len(self._queue):  # another round
            self._queue, self._at, self._first = sorted(self.newest), 0, self._place
        end = self._at + math.ceil(len(self._queue) * len(rows) / SPAN)
        moved = {k: self.newest[k] for k in self._queue[self._at : end] if k not in rows}
        self._put(moved)
        self._write(self._place, rows)
        if end >= len(self._queue):  # nothing is only in these any more
            self._connection.execute("DELETE FROM journal WHERE place < ?", (self._first,))

        def adopt() -> None:
            for key in moved:
                del self.newest[key]
            self.newest.update(rows)
            self._place, self._at = self._place + 1, end

        return adopt

    def empty(self, rows: Rows) -> Callable[[], None]:
        """Within a transaction: move everything, and these rows; returns the same as `append`."""
        self._put({**self.newest, **rows})
        self._connection.execute("DELETE FROM journal")
        place = self._place + 1  # one is left out: readers see that they have missed something
        self._write(place, {})

        def adopt() -> None:
            self.newest, self._queue, self._place = {}, [], place + 1

        return adopt

    def over(self, rows: Iterable[tuple[bytes, bytes]], prefix: bytes) -> Iterator[Row]:
        """Rows of the table with this prefix, in order of the keys, as the journal has them."""
        newest = sorted(pair for pair in self.newest.items() if pair[0].startswith(prefix))
        both = merge(newest, rows, key=itemgetter(0))  # of equal keys the journal's comes first
        return (next(pairs) for _, pairs in groupby(both, key=itemgetter(0)))

    def _write(self, place: int, rows: Rows) -> None:
        entry = place, _packed(place, rows)
        self._connection.execute("INSERT INTO journal VALUES (?, ?)", entry)


def _there(connection: sqlite3.Connection) -> bool:
    """Not in stores of the first version that were not written to since."""
    query = "SELECT 1 FROM sqlite_master WHERE name = 'journal'"
    return connection.execute(query).fetchone() is not None


def _packed(place: int, rows: Rows) -> bytes:
    """An entry: a checksum, how many rows, the lengths of keys and values, then all of these."""
    try:
        lengths = [(len(k), GONE if v is None else len(v)) for k, v in rows.items()]
        head = np.array([len(rows), *chain.from_iterable(lengths)], "<i4").tobytes()
        body = [part for row in rows.items() for part in row if part is not None]
        return b"".join([_checksum(place, head, rows), head, *body])
    except TypeError as error:
        raise JournalError(f"keys and values are bytes: {error}") from None


def _unpacked(place: int, entry: bytes) -> Rows:
    damaged = JournalError("an entry of the journal is damaged: restore a backup")
    try:
        count = int.from_bytes(entry[4:8], "little")
        lengths = np.frombuffer(entry, "<i4", 2 * count, 8)
    except (TypeError, ValueError):  # it is not even bytes, or not that long
        raise damaged from None
    ends = list(accumulate(np.maximum(lengths, 0).tolist(), initial=8 + lengths.nbytes))
    parts = [entry[start:end] for start, end in pairwise(ends)]
    keys, values = parts[::2], parts[1::2]
    if ends[-1] != len(entry) or entry[:4] != _checksum(place, entry[4 : ends[0]], keys):
        raise damaged
    rows: dict[bytes, bytes | None] = dict(zip(keys, values, strict=True))
    return rows | {keys[n]: None for n in np.flatnonzero(lengths[1::2] == GONE).tolist()}


def _checksum(place: int, head: bytes, keys: Iterable[bytes]) -> bytes:
    """Of all but the values: records have checksums of their own, and one may be damaged alone."""
    return zlib.crc32(b"".join(keys), zlib.crc32(head, place)).to_bytes(4, "little")
