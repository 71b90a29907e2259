"""Batches of users as ragged tensors that share one copy of the events.

A stream has a leading axis of runs: several splits, seeds or settings walk side by side. Users are
sorted by length, so at any time those who are still active are a prefix of each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from dips.data.interactions import Interactions
from dips.data.side_information import NO_SIDE_INFORMATION, SideInformation
from dips.errors import DataError
from dips.numerics.hashing import combine, text_keys
from dips.stream.side_information import token

RESIDENT = 1 << 25
"""Events of larger data wait in host memory, and come to a GPU with the users who walk."""


@dataclass(frozen=True, eq=False)
class EventColumns:
    """Events of a dataset; absent ratings are 1, absent times and side_information 0."""

    item: Tensor  # [events] int64; int32 while they wait
    rating: Tensor  # [events] float32
    time: Tensor  # [events] int64
    side: Tensor  # [events] int64: side information, packed
    token: Tensor  # [events] int64: what a recommender looks an event up by
    home: torch.device | None = None
    """The device that they wait to be taken to; None: they are where they are read."""

    @classmethod
    def of(
        cls,
        data: Interactions,
        device: torch.device | str = "cpu",
        side_information: SideInformation = NO_SIDE_INFORMATION,
    ) -> EventColumns:
        """The columns of a dataset for a device, and of its side information what is asked."""
        columns = cls.waiting(data, device, side_information)
        large = columns.device.type == "cuda" and len(columns.item) > RESIDENT
        return columns if large else columns.on_device()

    @classmethod
    def waiting(
        cls, data: Interactions, device: torch.device | str, side_information: SideInformation = NO_SIDE_INFORMATION
    ) -> EventColumns:
        """The same in host memory, not copied where that can be helped."""
        item = _shared(data.item)
        rating = torch.ones(len(item)) if data.rating is None else _shared(data.rating)
        time = torch.zeros(len(item), dtype=torch.int64)
        if data.time is not None:
            time = _shared(data.time)
        side = torch.zeros((), dtype=torch.int64).expand(len(item))  # takes no memory
        if side_information.clock is not None or side_information.columns:
            side = torch.from_numpy(side_information.pack(data))
        tokens = item if side_information.clock is None else token(item.long(), side)
        return cls(item, rating, time, side, tokens, torch.device(device))

    @property
    def device(self) -> torch.device:
        """Where events are read."""
        return self.item.device if self.home is None else self.home

    @cached_property
    def met(self) -> tuple[Tensor, Tensor]:
        """[n] the items that events name, ascending; [events] where each of theirs stands there."""
        items, place = torch.unique(self.item, return_inverse=True)
        return items, place

    def on_device(self) -> EventColumns:
        """All of them at home; they travel narrow, and are widened there."""
        return self if self.home is None else self._each(self._sent, None)

    def pick(self, events: Tensor) -> EventColumns:
        """Some events, in this order."""
        return self._each(lambda column: column[events], self.home)

    def _sent(self, column: Tensor) -> Tensor:
        column = column.to(self.device)
        return column if column.is_floating_point() else column.long()

    def _each(self, change: Callable[[Tensor], Tensor], home: torch.device | None) -> EventColumns:
        item, rating, time, side = map(change, (self.item, self.rating, self.time, self.side))
        tokens = item if self.token is self.item else change(self.token)
        return EventColumns(item, rating, time, side, tokens, home)


def _shared(column: npt.NDArray[Any]) -> Tensor:
    """As a tensor of the same memory; what is mapped from a file may not be, and is copied."""
    return torch.from_numpy(column) if column.flags.writeable else torch.tensor(column)


BLANKS = {"start": 0, "length": 0, "warmup": 0, "user": -1, "identity": 0}
"""What a stream says of a user, and what it says where there is none."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Users of one or more runs: where their events lie in the shared columns."""

    columns: EventColumns
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

        fields = {
            name: torch.where(there, getattr(self, name).gather(1, index), blank)
            for name, blank in BLANKS.items()
        }
        return Stream(self.columns, **fields)

    def gathered(self) -> Stream:
        """With the events of its own users alone, if events wait: one user's after the other's."""
        if self.columns.home is None:
            return self
        length = self.length.flatten()
        start = length.cumsum(0) - length
        shift = torch.repeat_interleave(self.start.flatten() - start, length)
        events = shift.add_(torch.arange(len(shift)))
        start = torch.where(length > 0, start, 0).view_as(self.start)
        return replace(self, columns=self.columns.pick(events), start=start)

    def on_device(self) -> Stream:
        """At the home of its events, and these with it."""
        fields = {name: getattr(self, name).to(self.columns.device) for name in BLANKS}
        return Stream(self.columns.on_device(), **fields)

    def keys(self, seeds: Sequence[int], epoch: int = 0) -> Tensor:
        """[runs, users] what random draws are derived from; epoch 0 is evaluation and service."""
        seed = torch.tensor(list(seeds), dtype=torch.int64, device=self.start.device)
        return combine(self.identity, seed[:, None], epoch)


def identities(data: Interactions) -> Tensor:
    """[users] keys of the original user ids."""
    return text_keys(data.user_ids.take(data.user_rows))


def make_stream(parts: Sequence[Interactions], columns: EventColumns) -> Stream:
    """One run per part, and where they are read the events of all of them."""
    return enlist(parts, columns).gathered().on_device()


def enlist(parts: Sequence[Interactions], columns: EventColumns) -> Stream:
    """One run per part; all parts are views of the dataset whose columns are given.

    Where events wait, so do the users: see `dips.stream.prefetch`.
    """
    for part in parts:
        if len(part.item) != len(columns.item):
            raise DataError(f"{part.name}: the parts of a stream must share one dataset's columns")
    shape = (len(parts), max(part.users for part in parts))
    fields = {name: torch.full(shape, blank, dtype=torch.int64) for name, blank in BLANKS.items()}
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
    device = columns.item.device
    return Stream(columns, **{name: field.to(device) for name, field in fields.items()})
