"""Map item names to codes of the store, and codes of the store to items of a model.

A code never changes, so that records stay valid when the model is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import final

import torch
from torch import Tensor

from dips.data.interactions import Strings
from dips.serve.events import EventError
from dips.serve.stores.base import Store, StoreError, Table

PREFIX = b"items/"
MAX_ITEMS = 1 << 24
"""Most different items in a store; their codes take 3 bytes."""


@final
class ItemVocabulary:
    """Item names of a store. Codes are given in order of arrival, from 0 on."""

    def __init__(self, store: Store) -> None:
        self.names: list[str] = []
        for key, value in store.scan(Table.METADATA, PREFIX):
            if int(key.removeprefix(PREFIX)) != len(self.names):
                raise StoreError("the store's item vocabulary is damaged: restore a backup")
            self.names += json.loads(value)
        self._codes = {name: code for code, name in enumerate(self.names)}

    def read_new(self, store: Store) -> None:
        """Read the items that another process has added to the store since the last call."""
        while (row := store.get(Table.METADATA, [self._next_key()])[0]) is not None:
            names = json.loads(row)
            self.add({name: len(self.names) + place for place, name in enumerate(names)})

    def code(self, name: str, new: dict[str, int]) -> int:
        """Return the code of an item; an unknown item gets the next code and is added to `new`."""
        code = self._codes.get(name, -1)
        if code >= 0:
            return code
        return new.setdefault(name, len(self.names) + len(new))

    def codes(self, names: Sequence[str], new: dict[str, int]) -> list[int]:
        """Return the codes of several items; unknown items are added to `new`."""
        codes = [self._codes.get(name, -1) for name in names]
        return [self.code(name, new) for name in names] if -1 in codes else codes

    def check_limit(self, name: str) -> None:
        """Raise `EventError` for an unknown item when the vocabulary is full."""
        if len(self.names) >= MAX_ITEMS and name not in self._codes:
            raise EventError(f"item '{name}' is new, and the store holds {MAX_ITEMS} items already")

    def rows(self, new: Iterable[str]) -> dict[bytes, bytes]:
        """Return the metadata rows to write for new items."""
        names = list(new)
        if not names:
            return {}
        return {self._next_key(): json.dumps(names, ensure_ascii=False).encode()}

    def _next_key(self) -> bytes:
        """Return the metadata key of the next items; each row holds the code of its first one."""
        return PREFIX + b"%010d" % len(self.names)

    def add(self, new: dict[str, int]) -> None:
        """Add new items whose rows were staged."""
        self.names += new
        self._codes.update(new)

    def roll_back(self, count: int) -> None:
        """Remove all items from code `count` on, after a commit has failed."""
        for name in self.names[count:]:
            del self._codes[name]
        del self.names[count:]


@final
class ModelItems:
    """Map from codes of the store to items of one model; -1 for items the model does not know."""

    def __init__(self, vocabulary: ItemVocabulary, item_ids: Strings) -> None:
        self._item_ids = item_ids
        self._buffer = self._look_up(vocabulary.names)  # has room for further codes
        self.index = self._buffer  # [codes] int64

    def update(self, vocabulary: ItemVocabulary) -> Tensor:
        """Extend the map to all codes of a vocabulary, and return it, [codes]."""
        self.index = self.extended(vocabulary.names[len(self.index) :])
        return self.index

    def extended(self, new: Collection[str]) -> Tensor:
        """Return the map with new items appended, [codes]; `index` does not change.

        The memory behind it doubles when it is full, so that a new item does not copy the map.
        """
        known, end = len(self.index), len(self.index) + len(new)
        if end > len(self._buffer):
            self._buffer = torch.cat([self.index, self.index.new_empty(max(known, len(new)))])
        self._buffer[known:end] = self._look_up(new)
        return self._buffer[:end] if new else self.index

    def _look_up(self, names: Iterable[str]) -> Tensor:
        index = self._item_ids.index
        return torch.tensor([index.get(name, -1) for name in names], dtype=torch.int64)
