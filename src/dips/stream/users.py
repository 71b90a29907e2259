"""Batches of users as ragged tensors that share one copy of the events.

A stream has a leading axis of runs: several splits, seeds or settings walk side by side. Users are
sorted by length, so at any time those who are still active are a prefix of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dips.data.interactions import Interactions
from dips.data.sides import NOTHING, Sides
from dips.errors import DataError
from dips.numerics.hashing import combine, text_keys
from dips.stream.side import token


@dataclass(frozen=True, eq=False)
class Columns:
    """All events of a dataset on one device; absent ratings are 1, absent times and sides 0."""

    item: Tensor  # [events] int64
    rating: Tensor  # [events] float32
    time: Tensor  # [events] int64
    side: Tensor  # [events] int64: side information, packed
    token: Tensor  # [events] int64: what a recommender looks an event up by

    @classmethod
    def of(
        cls, data: Interactions, device: torch.device | str = "cpu", sides: Sides = NOTHING
    ) -> Columns:
        """Copy the columns of a dataset to a device, and of its side information what is asked."""
        item = torch.from_numpy(data.item.astype("int64"))
        rating = torch.ones(len(item)) if data.rating is None else torch.tensor(data.rating)
        time = torch.zeros(len(item), dtype=torch.int64)
        if data.time is not None:
            time = torch.tensor(data.time)
        side = torch.zeros((), dtype=torch.int64).expand(len(item))  # takes no memory
        if sides.clock is not None or sides.columns:
            side = torch.from_numpy(sides.pack(data))
        item, side = item.to(device), side.to(device)
        tokens = item if sides.clock is None else token(item, side)
        return cls(item, rating.to(device), time.to(device), side, tokens)


@dataclass(frozen=True, eq=False)
class Stream:
    """Users of one or more runs: where their events lie in the shared columns."""

    columns: Columns
    start: Tensor  # [runs, users] first event
    length: Tensor  # [runs, users] number of events, descending; 0 pads a run
    warmup: Tensor  # [runs, users] events before predictions count
    user: Tensor  # [runs, users] index in the run's Interactions; -1 pads
    identity: Tensor  # [runs, users] 64-bit key of the original user id

    @property
    def runs(self) -> int:
        """How many runs walk side by side."""
        return self.start.shape[0]

    @property
    def longest(self) -> int:
        """The length of the longest history."""
        return int(self.length.max())

    def take(self, places: Tensor) -> Stream:
        """Some users of every run: `places` [runs, n], ascending as they are sorted; -1 pads."""
        index, there = places.clamp_min(0), places >= 0

        def of(field: Tensor, blank: int) -> Tensor:
            return torch.where(there, field.gather(1, index), blank)

        return Stream(
            self.columns,
            of(self.start, 0),
            of(self.length, 0),
            of(self.warmup, 0),
            of(self.user, -1),
            of(self.identity, 0),
        )

    def keys(self, seeds: Sequence[int], epoch: int = 0) -> Tensor:
        """[runs, users] what random draws are derived from; epoch 0 is evaluation and service."""
        seed = torch.tensor(list(seeds), dtype=torch.int64, device=self.start.device)
        return combine(self.identity, seed[:, None], epoch)


def identities(data: Interactions) -> Tensor:
    """[users] keys of the original user ids."""
    return text_keys(data.user_id(user) for user in range(data.users))


def make_stream(parts: Sequence[Interactions], columns: Columns) -> Stream:
    """One run per part; all parts are views of the dataset whose columns are given."""
    for part in parts:
        if len(part.item) != len(columns.item):
            raise DataError(f"{part.name}: the parts of a stream must share one dataset's columns")
    width = max(part.users for part in parts)
    device = columns.item.device
    fields: dict[str, Tensor] = {}
    for name, empty in (("start", 0), ("length", 0), ("warmup", 0), ("user", -1), ("identity", 0)):
        fields[name] = torch.full((len(parts), width), empty, dtype=torch.int64)
    for run, part in enumerate(parts):
        length = torch.from_numpy(part.lengths.copy())
        order = torch.argsort(length, descending=True, stable=True)
        values = {
            "start": torch.from_numpy(part.starts.copy()),
            "length": length,
            "warmup": torch.from_numpy(part.warmup.copy()),
            "user": torch.arange(part.users),
            "identity": identities(part),
        }
        for name, column in values.items():
            fields[name][run, : part.users] = column[order]
    return Stream(columns, **{name: field.to(device) for name, field in fields.items()})
