"""Care of a store: check every byte of it, back it up, bring it back. Needs nothing of a run.

A backup is one file for any kind of store, with a digest at its end: so it also moves sketches from
one kind of store to another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from dips.data.atomic import written
from dips.serve.records import fault
from dips.serve.stores.base import RESTORING, Store, StoreError, Table

MAGIC = b"dips backup 1\n"
FRAME = struct.Struct("<BII")
"""Table, length of the key, length of the value."""
PIECE = 10_000
"""Rows of a restore in a commit."""
END = 255
"""Stands in the place of a table behind the last row."""


def check(store: Store) -> list[str]:
    """Everything that is wrong with a store; nothing in the best case."""
    if wrong := store.verify():
        return wrong
    try:
        with store.snapshot():
            return list(_faults(store))
    except StoreError as error:
        return [str(error)]


def _faults(store: Store) -> Iterator[str]:
    """Reads every row: those of users are judged here, others by the store."""
    for user, record in store.scan(Table.USERS):
        if reason := fault(user, record):
            yield f"the record of user '{user.decode(errors='replace')}' {reason}"
    for table in (Table.FACTS, Table.IDS, Table.PLACES):
        for _ in store.scan(table):
            pass


def backup(store: Store, path: Path) -> int:
    """Write everything in a store into one file, whole or not at all; returns the rows."""
    rows, digest = 0, hashlib.sha256(MAGIC)
    with written(path) as part, part.open("wb") as file, store.snapshot():
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
    """Fill an empty store from a backup; returns the rows. The whole file is checked first."""
    if any(True for table in Table for _ in islice(store.scan(table), 1)):
        raise StoreError("a backup is restored into an empty store: choose another place")
    try:
        with path.open("rb") as file:
            for _ in _frames(file, path):
                pass
        with path.open("rb") as file:
            return _fill(store, _frames(file, path))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error})") from None


def _fill(store: Store, frames: Iterator[tuple[Table, bytes, bytes]]) -> int:
    store.commit({Table.FACTS: {RESTORING: b"1"}})
    rows = 0
    while piece := list(islice(frames, PIECE)):
        change: dict[Table, dict[bytes, bytes | None]] = {table: {} for table in Table}
        for table, key, value in piece:
            change[table][key] = value
        store.commit(change)
        rows += len(piece)
    store.commit({Table.FACTS: {RESTORING: None}})
    return rows


def _frames(file: IO[bytes], path: Path) -> Iterator[tuple[Table, bytes, bytes]]:
    """The rows of a backup; raises at its end where the digest does not fit."""
    digest, tables, damaged = hashlib.sha256(MAGIC), list(Table), f"{path}: the backup is damaged"
    if file.read(len(MAGIC)) != MAGIC:
        raise StoreError(f"{path} is not a backup of dips")
    while True:
        head = file.read(FRAME.size)
        if len(head) < FRAME.size:
            raise StoreError(damaged)
        number, keys, values = FRAME.unpack(head)
        if number == END:
            if file.read() != digest.digest():
                raise StoreError(damaged)
            return
        body = file.read(keys + values)
        if number >= len(tables) or len(body) < keys + values:
            raise StoreError(damaged)
        digest.update(head + body)
        yield tables[number], body[:keys], body[keys:]
