"""Check, back up and restore stores. Needs no trained model.

A backup is one file for any kind of store, with a digest at its end. So a backup also moves data
from one kind of store to another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from dips.data.atomic_write import atomic_write
from dips.serve.consistency import find_faults
from dips.serve.stores.base import RESTORING, Store, StoreError, Table

MAGIC = b"dips backup 2\n"
OLD_MAGIC = b"dips backup 1\n"
FRAME = struct.Struct("<BII")
"""Header of a row: table, length of the key, length of the value."""
RESTORE_ROWS = 10_000
"""Rows in one commit of a restore."""
END = 255
"""Table number of the frame behind the last row."""


def check(store: Store) -> list[str]:
    """Read a whole store and check it.

    Args:
        store: The store to check.

    Returns:
        What is wrong, one sentence each; empty for an intact store.
    """
    faults = store.verify()
    try:
        with store.snapshot():
            for fault in find_faults(store):
                faults.append(fault)
    except StoreError as error:
        if str(error) not in faults:
            faults.append(str(error))
    return faults


def backup(store: Store, path: Path) -> int:
    """Write all rows of a store to one file. The file appears only when it is complete.

    Args:
        store: The store; another process may write to it.
        path: The file to write.

    Returns:
        Number of rows.

    Raises:
        StoreError: The store cannot be read, or the file belongs to it.
        DataError: The file cannot be written.
    """
    if store.owns(path) or str(path).startswith("sqlite:"):
        raise StoreError(
            f"{path} is a store or a file of one: write the backup to a new, plain file, for "
            "example sketches.backup"
        )
    rows, digest = 0, hashlib.sha256(MAGIC)
    with atomic_write(path) as part, part.open("wb") as file, store.snapshot():
        file.write(MAGIC)
        for number, table in enumerate(Table):
            for key, value in store.scan(table):
                frame = FRAME.pack(number, len(key), len(value)) + key + value
                digest.update(frame)
                file.write(frame)
                rows += 1
        file.write(FRAME.pack(END, 0, 0) + digest.digest())
    return rows


def restore(path: Path, store: Store) -> int:
    """Fill an empty store from a backup. The whole file is checked first.

    Args:
        path: The backup.
        store: An empty store.

    Returns:
        Number of rows.

    Raises:
        StoreError: The store is not empty, or the file is not an intact backup.
    """
    if any(True for table in Table for _ in islice(store.scan(table), 1)):
        raise StoreError("a backup is restored into an empty store: choose another place")
    try:
        with path.open("rb") as file:
            for _ in _read_rows(file, path):
                pass
        with path.open("rb") as file:
            return _fill(store, _read_rows(file, path))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error})") from None


def _fill(store: Store, rows: Iterator[tuple[Table, bytes, bytes]]) -> int:
    """Write rows to a store in several commits; return their number."""
    store.commit({Table.METADATA: {RESTORING: b"1"}})
    count = 0
    while chunk := list(islice(rows, RESTORE_ROWS)):
        change: dict[Table, dict[bytes, bytes | None]] = {table: {} for table in Table}
        for table, key, value in chunk:
            change[table][key] = value
        store.commit(change)
        count += len(chunk)
    store.commit({Table.METADATA: {RESTORING: None}})
    return count


def _read_rows(file: IO[bytes], path: Path) -> Iterator[tuple[Table, bytes, bytes]]:
    """Yield the rows of a backup; raise at its end if the digest does not match."""
    digest, tables = hashlib.sha256(MAGIC), list(Table)
    damaged = StoreError(f"{path}: the backup is damaged: use another backup")
    magic = file.read(len(MAGIC))
    if magic == OLD_MAGIC:
        raise StoreError(f"{path} was written by dips 0.1, which this version cannot read")
    if magic != MAGIC:
        raise StoreError(f"{path} is not a backup of dips")
    while True:
        head = file.read(FRAME.size)
        if len(head) < FRAME.size:
            raise damaged
        number, keys, values = FRAME.unpack(head)
        if number == END:
            if file.read() != digest.digest():
                raise damaged
            return
        body = file.read(keys + values)
        if number >= len(tables) or len(body) < keys + values:
            raise damaged
        digest.update(head + body)
        yield tables[number], body[:keys], body[keys:]
