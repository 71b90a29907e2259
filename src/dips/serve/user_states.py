"""Hold the states of a batch's users as tensors, between decoding and encoding their records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from dips.serve.records import UserRecords, decode_unchecked, find_fault
from dips.serve.stores.base import Store, Table
from dips.sketch.records import Sketch, empty


@dataclass(eq=False)
class UserStates:
    """State of each user in a batch; the engine changes it in place.

    Items are codes of the store's vocabulary. Unlike in `UserRecords`, kept and waiting entries
    are two sketches of fixed width.
    """

    sketch: Sketch  # [users, width]: the size of the sketch, or more where a record is larger
    waiting: Sketch  # [users, depth]: interactions since the last refresh, oldest first
    seen: Tensor  # [users] number of interactions so far
    next_seq: Tensor  # [users] 1 + the last sequence number; 0 where there was none

    @property
    def depth(self) -> int:
        """Number of slots for waiting interactions."""
        return self.waiting.position.shape[1]

    @classmethod
    def from_records(cls, records: UserRecords, size: int, longest_period: int) -> UserStates:
        """Return the states of users from their records.

        Args:
            records: Decoded records.
            size: Minimum width of the sketches.
            longest_period: Minimum number of slots for waiting interactions. One slot more than
                the most waiting interactions is free, for the next arrival.
        """
        kept, waiting = torch.from_numpy(records.kept), torch.from_numpy(records.waiting)
        width = max(size, int(records.kept.max(initial=0)))
        depth = max(longest_period, int(records.waiting.max(initial=0)) + 1)
        return cls(
            _slots(records, torch.zeros_like(kept), kept, width),
            _slots(records, kept, waiting, depth),
            torch.from_numpy(records.seen),
            torch.from_numpy(records.next_seq),
        )

    def to_records(self, version: int) -> UserRecords:
        """Return the records to encode.

        Args:
            version: Version number of the policy that made the change.
        """
        kept, waiting = self.sketch.present.sum(1), self.waiting.present.sum(1)
        policy = np.full(len(kept), version, np.int64)
        counts = (kept.numpy(), waiting.numpy(), policy, self.seen.numpy(), self.next_seq.numpy())
        if not waiting.any():
            return UserRecords(*counts, **{n: f.numpy() for n, f in self.sketch._asdict().items()})
        width = int((kept + waiting).max()) if len(kept) else 0
        slot = torch.arange(width)
        is_waiting = slot >= kept[:, None]
        kept_slot = slot.expand(len(kept), -1).clamp_max(self.sketch.position.shape[1] - 1)
        waiting_slot = (slot - kept[:, None]).clamp(0, self.depth - 1)
        present = slot < (kept + waiting)[:, None]
        fields = {}
        for name in Sketch._fields:
            first, second = getattr(self.sketch, name), getattr(self.waiting, name)
            joined = torch.where(
                is_waiting, second.gather(1, waiting_slot), first.gather(1, kept_slot)
            )
            blank = -1 if name == "position" else 0
            fields[name] = torch.where(present, joined, blank).numpy()
        return UserRecords(*counts, **fields)


def scan_records(
    store: Store, chunk: int
) -> Iterator[tuple[list[bytes], UserRecords, dict[bytes, str]]]:
    """Iterate over all users of a store, some at a time.

    Args:
        store: The store to read.
        chunk: Most users at a time.

    Returns:
        Triples: store keys, their decoded records, and why other records are damaged, by key.
    """
    source = store.scan(Table.USERS)
    while pairs := list(islice(source, chunk)):
        faults = {key: why for key, record in pairs if (why := find_fault(key, record))}
        intact = {key: record for key, record in pairs if key not in faults}
        yield list(intact), decode_unchecked(list(intact.values())), faults


def _slots(records: UserRecords, first: Tensor, count: Tensor, width: int) -> Sketch:
    """Return `count` entries of each user from slot `first` on, [users, width]."""
    slots = records.item.shape[1]
    if slots == width and np.array_equal(records.kept + records.waiting, count):  # all entries
        return Sketch(*(torch.from_numpy(getattr(records, name)) for name in Sketch._fields))
    blank = empty(len(count), width)
    if slots == 0:
        return Sketch(*(field.clone() for field in blank))  # states are changed in place
    slot = torch.arange(width)
    present = slot < count[:, None]
    source = (first[:, None] + slot).clamp_max(slots - 1)
    return Sketch(*(
        torch.where(present, torch.from_numpy(getattr(records, name)).gather(1, source), field)
        for name, field in zip(Sketch._fields, blank, strict=True)
    ))  # fmt: skip
