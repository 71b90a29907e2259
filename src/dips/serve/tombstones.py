"""Tombstones: what a store keeps of a user that was erased, to ignore replayed events.

A tombstone holds a hash of the name and the user's next sequence number; no name, no items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dips.serve.fields import MAX_SEQ
from dips.serve.stores.base import Store, Table

PREFIX = b"tombstone/"
NO_EVENT = MAX_SEQ + 1
"""Next sequence number of a user whose record was damaged: no event reaches it."""


def tombstone_key(user: str) -> bytes:
    """Return the metadata key of a user's tombstone."""
    return PREFIX + hashlib.blake2b(user.encode(), digest_size=16).digest()


def read_tombstones(store: Store, users: Sequence[str]) -> dict[str, int]:
    """Return the tombstones among some users: the next sequence number by user.

    Events of such a user are ignored unless their sequence number is at least this one.
    """
    found = store.get(Table.METADATA, [tombstone_key(user) for user in users])
    return {user: int(seq) for user, seq in zip(users, found, strict=True) if seq is not None}
