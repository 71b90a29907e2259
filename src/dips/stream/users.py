"""Batches of users as ragged tensors that share one copy of the events.

A stream has a leading axis of runs: splits, seeds or settings that are rolled out together. Users
are sorted by length, so the active users at any time are a prefix of each run.
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

MAX_RESIDENT_EVENTS = 1 << 25
"""Larger data stays in host memory; each user batch brings its events to the GPU."""


@dataclass(frozen=True, eq=False)
class EventColumns:
    """Events of a dataset. Missing ratings are 1, missing times and side information 0."""

    item: Tensor  # [events] int64; int32 in host memory
    rating: Tensor  # [events] float32
    time: Tensor  # [events] int64 seconds
    side: Tensor  # [events] int64: side information, packed
    token: Tensor  # [events] int64: item, with the time where that is side information
    target_device: torch.device | None = None
    """The device that events in host memory are for; None: they are there."""

    @classmethod
    def of(
        cls,
        data: Interactions,
        device: torch.device | str = "cpu",
        side_information: SideInformation = NO_SIDE_INFORMATION,
    ) -> EventColumns:
        """Return the columns of a dataset for a device.

        Args:
            data: The dataset.
            device: Where rollouts and training run. Large data stays in host memory.
            side_information: Which side information to pack.
        """
        columns = cls.on_host(data, device, side_information)
        large = columns.device.type == "cuda" and len(columns.item) > MAX_RESIDENT_EVENTS
        return columns if large else columns.to_device()

    @classmethod
    def on_host(
        cls,
        data: Interactions,
        device: torch.device | str,
        side_information: SideInformation = NO_SIDE_INFORMATION,
    ) -> EventColumns:
        """Return the columns of a dataset in host memory, without copies where possible.

        Args:
            data: The dataset.
            device: The device that `to_device` will copy them to.
            side_information: Which side information to pack.
        """
        item = _as_tensor(data.item)
        rating = torch.ones(len(item)) if data.rating is None else _as_tensor(data.rating)
        time = torch.zeros(len(item), dtype=torch.int64)
        if data.time is not None:
            time = _as_tensor(data.time)
        side = torch.zeros((), dtype=torch.int64).expand(len(item))  # takes no memory
        if side_information.clock is not None or side_information.columns:
            side = torch.from_numpy(side_information.pack(data))
        tokens = item if side_information.clock is None else token(item.long(), side)
        return cls(item, rating, time, side, tokens, torch.device(device))

    @property
    def device(self) -> torch.device:
        """The device on which rollouts and training run."""
        return self.item.device if self.target_device is None else self.target_device

    @cached_property
    def item_index(self) -> tuple[Tensor, Tensor]:
        """[n] the distinct items in ascending order, and [events] the place of each event's."""
        items, place = torch.unique(self.item, return_inverse=True)
        return items, place

    def to_device(self) -> EventColumns:
        """Return the columns on their device; they are copied as int32 and widened there."""
        return self if self.target_device is None else self._map(self._copy, None)

    def pick(self, events: Tensor) -> EventColumns:
        """Return some events, in this order."""
        return self._map(lambda column: column[events], self.target_device)

    def _copy(self, column: Tensor) -> Tensor:
        column = column.to(self.device)
        return column if column.is_floating_point() else column.long()

    def _map(self, change: Callable[[Tensor], Tensor], target: torch.device | None) -> EventColumns:
        item, rating, time, side = map(change, (self.item, self.rating, self.time, self.side))
        tokens = item if self.token is self.item else change(self.token)
        return EventColumns(item, rating, time, side, tokens, target)


def _as_tensor(column: npt.NDArray[Any]) -> Tensor:
    """Return a tensor that shares memory; a read-only memory map is copied."""
    return torch.from_numpy(column) if column.flags.writeable else torch.tensor(column)


PADDING = {"start": 0, "length": 0, "warmup": 0, "user": -1, "identity": 0}
"""Fields of a stream with a value per user, and their values in padded places."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Users of one or more runs, and the place of their events in the shared columns."""

    columns: EventColumns
    start: Tensor  # [runs, users] first event
    length: Tensor  # [runs, users] number of events, descending; 0 pads a run
    warmup: Tensor  # [runs, users] number of events before predictions count
    user: Tensor  # [runs, users] index in the run's Interactions; -1 pads
    identity: Tensor  # [runs, users] 64-bit key of the original user id

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.start.shape[0]

    @property
    def longest(self) -> int:
        """Length of the longest history."""
        return int(self.length.max())

    def take(self, places: Tensor) -> Stream:
        """Return some users of every run.

        Args:
            places: Places of the users in each run, ascending; -1 pads; [runs, n].
        """
        index, present = places.clamp_min(0), places >= 0

        fields = {
            name: torch.where(present, getattr(self, name).gather(1, index), padding)
            for name, padding in PADDING.items()
        }
        return Stream(self.columns, **fields)

    def gather_events(self) -> Stream:
        """Return the stream with the events of its users only, if events are on the host."""
        if self.columns.target_device is None:
            return self
        length = self.length.flatten()
        start = length.cumsum(0) - length
        shift = torch.repeat_interleave(self.start.flatten() - start, length)
        events = shift.add_(torch.arange(len(shift)))
        start = torch.where(length > 0, start, 0).view_as(self.start)
        return replace(self, columns=self.columns.pick(events), start=start)

    def to_device(self) -> Stream:
        """Return the stream and its events on the device of the columns."""
        fields = {name: getattr(self, name).to(self.columns.device) for name in PADDING}
        return Stream(self.columns.to_device(), **fields)

    def keys(self, seeds: Sequence[int], epoch: int = 0) -> Tensor:
        """Return the keys that random numbers are derived from, [runs, users].

        Args:
            seeds: Seed of each run.
            epoch: Number of the training epoch; 0 for evaluation and service.
        """
        seed = torch.tensor(list(seeds), dtype=torch.int64, device=self.start.device)
        return combine(self.identity, seed[:, None], epoch)


def user_id_keys(data: Interactions) -> Tensor:
    """Return 64-bit keys of the original user ids, [users]."""
    return text_keys(data.user_ids.take(data.user_rows))


def make_stream(parts: Sequence[Interactions], columns: EventColumns) -> Stream:
    """Return a stream on the device of the columns, with one run per part.

    Args:
        parts: The users of each run; views of the dataset that the columns are from.
        columns: Events of that dataset.

    Raises:
        DataError: If a part is from another dataset.
    """
    return make_host_stream(parts, columns).gather_events().to_device()


def make_host_stream(parts: Sequence[Interactions], columns: EventColumns) -> Stream:
    """Return a stream where the columns are, with one run per part.

    If the events are in host memory, `dips.stream.prefetch` brings user batches to the device.

    Args:
        parts: The users of each run; views of the dataset that the columns are from.
        columns: Events of that dataset.

    Raises:
        DataError: If a part is from another dataset.
    """
    for part in parts:
        if len(part.item) != len(columns.item):
            raise DataError(f"{part.name}: the parts of a stream must share one dataset's columns")
    shape = (len(parts), max(part.users for part in parts))
    fields = {
        name: torch.full(shape, padding, dtype=torch.int64) for name, padding in PADDING.items()
    }
    for run, part in enumerate(parts):
        length = torch.from_numpy(part.lengths.copy())
        order = torch.argsort(length, descending=True, stable=True)
        values = {
            "start": torch.from_numpy(part.starts.copy()),
            "length": length,
            "warmup": torch.from_numpy(part.warmup.copy()),
            "user": torch.arange(part.users),
            "identity": user_id_keys(part),
        }
        for name, column in values.items():
            fields[name][run, : part.users] = column[order]
    device = columns.item.device
    return Stream(columns, **{name: field.to(device) for name, field in fields.items()})
