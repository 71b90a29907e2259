"""Which event ids have been seen lately: a window over the newest, with a budget of bytes.

Ids are hashed, together with the user. The window counts ids, not batches: what is a duplicate does
not depend on how events were batched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import final

from dips.errors import ConfigError
from dips.serve.stores.base import Store, Table

BYTES_PER_ID = 64
"""What an id takes in the store: 16 bytes of hash and 8 of place, twice, and the tables' own."""
COUNT = b"ids"


def id_key(user: str, event_id: str) -> bytes:
    """16 bytes for an event id of a user."""
    return hashlib.blake2b(f"{user}\0{event_id}".encode(), digest_size=16).digest()


@final
class Window:
    """The newest ids; places are counted from 0 on in order of arrival."""

    def __init__(self, store: Store, budget: int, batch: int) -> None:
        self._store, self.length = store, budget // BYTES_PER_ID
        if self.length < batch:
            least = batch * BYTES_PER_ID
            raise ConfigError(f"id_bytes is {budget}: batches of {batch} need {least} at least")
        (found,) = store.get(Table.FACTS, [COUNT])
        self.count = int(found or b"0")
        first = next(iter(store.scan(Table.PLACES)), None)
        self._low = int.from_bytes(first[0], "big") if first else self.count

    def look(self, keys: Sequence[bytes]) -> Glance:
        """What is known of these ids, for one batch."""
        found = self._store.get(Table.IDS, keys)
        known = {k: int.from_bytes(v, "big") for k, v in zip(keys, found, strict=True) if v}
        return Glance(self, known)

    def rows(self, new: dict[bytes, int]) -> dict[Table, dict[bytes, bytes | None]]:
        """What has to be written: the new ids, and the removal of those that fall out."""
        if not new:
            return {}
        count = self.count + len(new)
        out = [place.to_bytes(8, "big") for place in range(self._low, count - self.length)]
        gone = [key for key in self._store.get(Table.PLACES, out) if key is not None]
        ids: dict[bytes, bytes | None] = dict.fromkeys(gone)
        places: dict[bytes, bytes | None] = dict.fromkeys(out)
        for key, number in new.items():  # last: an id that fell out may come back
            place = number.to_bytes(8, "big")
            ids[key], places[place] = place, key
        facts: dict[bytes, bytes | None] = {COUNT: b"%d" % count}
        return {Table.IDS: ids, Table.PLACES: places, Table.FACTS: facts}

    def adopt(self, new: dict[bytes, int]) -> None:
        """The new ids have been written."""
        if new:
            self.count += len(new)
            self._low = max(self._low, self.count - self.length)

    @property
    def place(self) -> tuple[int, int]:
        """Where the window ends and begins."""
        return self.count, self._low

    def back_to(self, place: tuple[int, int]) -> None:
        """What came after this has not been written after all."""
        self.count, self._low = place


@final
class Glance:
    """The window as one batch sees it; `new` are the ids that it adds, with their places."""

    def __init__(self, window: Window, known: dict[bytes, int]) -> None:
        self._window, self._known = window, known
        self.new: dict[bytes, int] = {}

    def is_new(self, key: bytes) -> bool:
        """Whether this id is not in the window; then it is from now on."""
        count = self._window.count + len(self.new)
        place = self.new.get(key, self._known.get(key))
        if place is not None and place >= count - self._window.length:
            return False
        self.new[key] = count
        return True
