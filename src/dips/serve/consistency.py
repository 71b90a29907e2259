"""Check that the tables of a store agree with each other. Needs no trained model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from dips.serve.records import find_fault
from dips.serve.stores.base import COUNTERS, ID_COUNT, RESTORING, Store, Table

ROWS = 4096
"""Rows that are compared at a time."""


def find_faults(store: Store) -> Iterator[str]:
    """Read every row of a store; yield what is damaged or missing, one sentence each.

    Args:
        store: The store to read.

    Raises:
        StoreError: A row that has no checksum of its own is damaged.
    """
    counters, count, restoring = store.get(Table.METADATA, [COUNTERS, ID_COUNT, RESTORING])
    if restoring is not None:
        yield "a restore into this store was interrupted: restore the backup into a new store"
    for _ in store.scan(Table.METADATA):  # the store checks these rows
        pass
    yield from _find_user_faults(store, json.loads(counters or b"{}").get("users", 0))
    yield from _find_id_faults(store, int(count or b"0"))


def _find_user_faults(store: Store, count: int) -> Iterator[str]:
    """Check each record, and that no user is missing."""
    found = 0
    for user, record in store.scan(Table.USERS):
        found += 1
        if reason := find_fault(user, record):
            yield f"the record of user '{user.decode(errors='replace')}' {reason}"
    if found != count:
        yield f"the store holds {found} users, and its counter says {count}: restore a backup"


def _find_id_faults(store: Store, count: int) -> Iterator[str]:
    """Check that every event id has its place in the order of arrival, without a gap."""
    places = store.scan(Table.ID_ORDER)
    held, wrong, first = 0, 0, None
    while chunk := list(islice(places, ROWS)):
        first = int.from_bytes(chunk[0][0], "big") if first is None else first
        numbers = store.get(Table.EVENT_IDS, [key for _, key in chunk])
        for (place, _), number in zip(chunk, numbers, strict=True):
            wrong += number != place or int.from_bytes(place, "big") != first + held
            held += 1
    ids = sum(1 for _ in store.scan(Table.EVENT_IDS))
    last = 0 if first is None else first + held
    if wrong or ids != held or last != count:
        yield (
            f"the store holds {ids} event ids at {held} places of the order of arrival, up to "
            f"number {last} of {count}, and {wrong} do not agree: restore a backup"
        )
