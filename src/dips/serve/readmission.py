"""Accept events of a user again: of one who was erased, or whose sequence number is too high."""

from __future__ import annotations

import numpy as np

from dips.serve.fields import parse_name, parse_seq
from dips.serve.records import decode, encode
from dips.serve.stores.base import Store, Table
from dips.serve.tombstones import tombstone_key


def readmit(store: Store, user: str, last_seq: int | None = None) -> bool:
    """Set the last sequence number of a user. Only later events are applied from then on.

    Args:
        store: The store.
        user: Name of the user. If there is no record, the tombstone is changed.
        last_seq: The number; None: events with any number, or with none, are applied.

    Returns:
        Whether the user was known: has a record, or was erased.

    Raises:
        EventError: The name or the number is invalid.
        RecordError: The record is damaged.
        StoreError: The change could not be written.
    """
    name = parse_name(user, "user")
    key, next_seq = name.encode(), 0 if last_seq is None else parse_seq(last_seq) + 1
    (found,) = store.get(Table.USERS, [key])
    if found is None:
        tombstone = None if last_seq is None else b"%d" % next_seq
        (before,) = store.get(Table.METADATA, [tombstone_key(name)])
        store.commit({Table.METADATA: {tombstone_key(name): tombstone}})
        return before is not None
    records = decode([key], [found])._replace(next_seq=np.array([next_seq], np.int64))
    store.commit({
        Table.USERS: dict(zip([key], encode([key], records), strict=True)),
        Table.METADATA: {tombstone_key(name): None},
    })  # fmt: skip
    return True
