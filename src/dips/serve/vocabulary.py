"""The store's own item numbers: a code per name, never changed, so that runs can be swapped."""

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
LIMIT = 1 << 24
"""Most different items; their codes take 3 bytes."""


@final
class Vocabulary:
    """Names by code and codes by name. Codes are given in order of arrival."""

    def __init__(self, store: Store) -> None:
        self.names: list[str] = []
        for key, value in store.scan(Table.FACTS, PREFIX):
            if int(key.removeprefix(PREFIX)) != len(self.names):
                raise StoreError("the store's list of items is damaged: restore a backup")
            self.names += json.loads(value)
        self._codes = {name: code for code, name in enumerate(self.names)}

    def code(self, name: str, new: dict[str, int]) -> int:
        """The code of a name; a name never met before gets the next one, noted in `new`."""
        code = self._codes.get(name, -1)
        if code >= 0:
            return code
        return new.setdefault(name, len(self.names) + len(new))

    def codes(self, names: Sequence[str], new: dict[str, int]) -> list[int]:
        """The codes of many names; `new` as in `code`."""
        codes = [self._codes.get(name, -1) for name in names]
        return [self.code(name, new) for name in names] if -1 in codes else codes

    def check(self, name: str) -> None:
        """Refuse a new name when there are too many."""
        if len(self.names) >= LIMIT and name not in self._codes:
            raise EventError(f"item '{name}' is new, and the store holds {LIMIT} items already")

    def rows(self, new: Iterable[str]) -> dict[bytes, bytes]:
        """What has to be written before new names may be used."""
        names = list(new)
        if not names:
            return {}
        key = PREFIX + b"%010d" % len(self.names)
        return {key: json.dumps(names, ensure_ascii=False).encode()}

    def adopt(self, new: dict[str, int]) -> None:
        """The new names have been written."""
        self.names += new
        self._codes.update(new)

    def cut(self, count: int) -> None:
        """Only so many names have been written after all."""
        for name in self.names[count:]:
            del self._codes[name]
        del self.names[count:]


@final
class Numbering:
    """The run's number of every code, -1 where the run does not know the item."""

    def __init__(self, vocabulary: Vocabulary, items: Strings) -> None:
        self._items = items
        self.number = self._of(vocabulary.names)

    def up_to(self, vocabulary: Vocabulary) -> Tensor:
        """The numbers of all codes that the vocabulary has now."""
        self.number = self.with_new(vocabulary.names[len(self.number) :])
        return self.number

    def with_new(self, new: Collection[str]) -> Tensor:
        """The numbers of all codes, the new ones included."""
        return torch.cat([self.number, self._of(new)]) if new else self.number

    def _of(self, names: Iterable[str]) -> Tensor:
        index = self._items.index
        return torch.tensor([index.get(name, -1) for name in names], dtype=torch.int64)
