"""Recognise duplicate events, by sequence number or by event id.

- With `seq`, an event is a duplicate unless its number is above the user's last one. Late events
  count as duplicates, too. The last number is part of the user's record, so this holds for ever.
  A number that is absurdly far above the last one is refused.
- With `id`, an event is a duplicate if the user's id is among the newest ids of all users: the
  deduplication window. Its length is limited by a number of bytes.
- With neither, no duplicate is recognised.

The window counts ids, not batches: what is a duplicate does not depend on how events are batched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import final

import numpy as np

from dips.data.interactions import Int64
from dips.errors import ConfigError
from dips.serve.events import Event
from dips.serve.stores.base import ID_COUNT, Store, Table

BYTES_PER_ID = 64
"""Bytes of an id in the store: twice 16 of the hash and 8 of the number, and SQLite's overhead."""
MAX_SEQ_JUMP = 1 << 40
"""Largest step of a user's sequence numbers; a larger one may be as large as the last number."""


def id_hash(user: str, event_id: str) -> bytes:
    """Return a hash of 16 bytes for an event id of a user; both may hold any character."""
    text = f"{len(user)} {user}{event_id}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@final
class DeduplicationWindow:
    """Newest event ids of a store, numbered from 0 in order of arrival.

    Args:
        store: The store that holds the ids.
        id_bytes: Most bytes that the ids may take in the store.
        batch: Most events in a commit; the window must hold at least as many ids.

    Raises:
        ConfigError: `id_bytes` is too small for a batch.
    """

    def __init__(self, store: Store, id_bytes: int, batch: int) -> None:
        self._store, self.length = store, id_bytes // BYTES_PER_ID
        if self.length < batch:
            least = batch * BYTES_PER_ID
            raise ConfigError(f"id_bytes is {id_bytes}: batches of {batch} need {least} at least")
        (found,) = store.get(Table.METADATA, [ID_COUNT])
        self.count = int(found or b"0")
        first = next(iter(store.scan(Table.ID_ORDER)), None)
        self._oldest = int.from_bytes(first[0], "big") if first else self.count

    def look_up(self, hashes: Sequence[bytes]) -> BatchIds:
        """Read from the store which of a batch's ids are known.

        Args:
            hashes: Hashes of the event ids in the batch.

        Returns:
            The ids of the batch, to be checked event by event.
        """
        found = self._store.get(Table.EVENT_IDS, hashes)
        known = {k: int.from_bytes(v, "big") for k, v in zip(hashes, found, strict=True) if v}
        return BatchIds(self, known)

    def rows(self, new: dict[bytes, int]) -> dict[Table, dict[bytes, bytes | None]]:
        """Return the rows to write for new ids, and the deletion of ids that leave the window.

        Args:
            new: Number of each new id by its hash.
        """
        if not new:
            return {}
        count = self.count + len(new)
        leaving = [number.to_bytes(8, "big") for number in range(self._oldest, count - self.length)]
        deleted = [key for key in self._store.get(Table.ID_ORDER, leaving) if key is not None]
        ids: dict[bytes, bytes | None] = dict.fromkeys(deleted)
        order: dict[bytes, bytes | None] = dict.fromkeys(leaving)
        for key, number in new.items():  # after the deletions: an id that left may come again
            place = number.to_bytes(8, "big")
            ids[key], order[place] = place, key
        metadata: dict[bytes, bytes | None] = {ID_COUNT: b"%d" % count}
        return {Table.EVENT_IDS: ids, Table.ID_ORDER: order, Table.METADATA: metadata}

    def add(self, new: dict[bytes, int]) -> None:
        """Move the window on, over new ids whose rows were staged."""
        if new:
            self.count += len(new)
            self._oldest = max(self._oldest, self.count - self.length)

    @property
    def position(self) -> tuple[int, int]:
        """Number of the next id, and number of the oldest id in the store."""
        return self.count, self._oldest

    def roll_back(self, position: tuple[int, int]) -> None:
        """Return to an earlier position, after a commit has failed."""
        self.count, self._oldest = position


@final
class BatchIds:
    """Event ids of one batch. `new` holds the ids that the batch adds to the window."""

    def __init__(self, window: DeduplicationWindow, known: dict[bytes, int]) -> None:
        self._window, self._known = window, known
        self.new: dict[bytes, int] = {}

    def add(self, key: bytes) -> bool:
        """Add an id to the window; return False where it is in the window already."""
        count = self._window.count + len(self.new)
        number = self.new.get(key, self._known.get(key))
        if number is not None and number >= count - self._window.length:
            return False
        self.new[key] = count
        return True


def is_duplicate(event: Event, next_seq: int, ids: BatchIds) -> bool:
    """Return whether an event is a duplicate; add its id to the window where it is not.

    Args:
        event: The event.
        next_seq: The smallest sequence number that is accepted from this user.
        ids: Event ids of the batch.
    """
    if event.seq is not None:
        return event.seq < next_seq
    return event.id is not None and not ids.add(id_hash(event.user, event.id))


def is_jump(seq: int, next_seq: int) -> bool:
    """Return whether a sequence number is so far above the last one that it must be a mistake.

    All later events of the user would count as duplicates. A first number may be anything.

    Args:
        seq: The sequence number.
        next_seq: The smallest one that is accepted from this user; 0 before the first one.

    Example:
        >>> is_jump(10**15, 0), is_jump(10**15, 7), is_jump(10**15, 10**15 // 2)
        (False, True, False)
    """
    return next_seq > 0 and seq - next_seq > max(next_seq, MAX_SEQ_JUMP)


def are_all_new(row: Int64, seq: Int64, next_seq: Int64) -> bool:
    """Return whether a batch of events with sequence numbers holds no duplicate and no jump.

    Args:
        row: Which user each event belongs to, [events].
        seq: Sequence numbers, [events].
        next_seq: The smallest sequence number that is accepted from each user, [users].
    """
    order = np.argsort(row, kind="stable")
    row, seq = row[order], seq[order]
    least = next_seq[row]
    same_user = np.flatnonzero(row[1:] == row[:-1])
    least[same_user + 1] = seq[same_user] + 1
    is_far = (least > 0) & (seq - least > np.maximum(least, MAX_SEQ_JUMP))
    return bool((seq >= least).all()) and not bool(is_far.any())
