"""Find rows in the journal of another process, without reading whole entries.

A process that reads few rows between two commits would spend most of its time on the rows of other
users. So it reads the head of each new entry only: lengths, and a hash of every key.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from dips.serve.stores.journal import (
    DAMAGED,
    DELETED,
    HEAD_BYTES,
    Hashes,
    JournalError,
    Lengths,
    read_head,
    read_span,
)


class _Entry(NamedTuple):
    number: int
    lengths: Lengths  # [rows, 2] lengths of key and value
    hashes: Hashes  # [rows] hashes of the keys


@final
class JournalIndex:
    """Hashes of all keys in the journal, and where their rows are.

    Args:
        connection: Connection to the SQLite file.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._data_version = connection, -1
        self._entries: list[_Entry] = []  # without a gap, the newest last
        self._hashes: Hashes = np.zeros(0, np.uint32)  # of all entries, the newest last
        self._starts: list[int] = []  # first row of each entry in `_hashes`

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """Return the newest rows of some keys; None for deleted ones. Call it in a transaction.

        Args:
            keys: Keys to look up.

        Returns:
            Values by key; only of keys that the journal holds.
        """
        self._read_heads()
        wanted: dict[int, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            wanted.setdefault(zlib.crc32(key), []).append(key)
        found: dict[bytes, bytes | None] = {}
        rows = np.flatnonzero(np.isin(self._hashes, np.array(list(wanted), np.uint32)))
        for row in reversed(rows.tolist()):  # the newest first
            if left := wanted[int(self._hashes[row])]:
                key, value = self._read_row(row)
                if key in left:
                    left.remove(key)
                    found[key] = value
        return found

    def _read_heads(self) -> None:
        """Read the heads of new entries, and forget deleted entries."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version == self._data_version:
            return
        oldest, end = read_span(self._connection)
        known = [entry for entry in self._entries if oldest <= entry.number < end]
        first = known[-1].number + 1 if known else oldest
        self._entries = known + [self._read_entry(n) for n in range(first, end)]
        hashes = [entry.hashes for entry in self._entries]
        self._hashes = np.concatenate([np.zeros(0, np.uint32), *hashes])
        self._starts = np.cumsum([0, *map(len, hashes)])[:-1].tolist()
        self._data_version = version

    def _read_entry(self, number: int) -> _Entry:
        with self._open(number) as entry:
            return _Entry(number, *read_head(number, len(entry), entry.read))

    def _open(self, number: int) -> sqlite3.Blob:
        """Open the bytes of an entry."""
        try:
            return self._connection.blobopen("journal", "rows", number, readonly=True)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # it is missing, or not bytes
                raise JournalError(DAMAGED) from None
            raise

    def _read_row(self, row: int) -> tuple[bytes, bytes | None]:
        """Return a row; raise `JournalError` if its key is damaged."""
        place = int(np.searchsorted(self._starts, row, "right")) - 1
        number, lengths, hashes = self._entries[place]
        row -= self._starts[place]
        start = HEAD_BYTES + hashes.nbytes + lengths.nbytes
        start += int(np.maximum(lengths[:row], 0).sum())
        key_length, value_length = lengths[row].tolist()
        with self._open(number) as entry:
            entry.seek(start)
            key = entry.read(key_length)
            value = None if value_length == DELETED else entry.read(value_length)
        if zlib.crc32(key) != hashes[row]:
            raise JournalError(DAMAGED)
        return key, value
