"""Users on their way, as tensors: what is kept, what waits for a refresh, how much was seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from dips.serve.records import Rows, decode
from dips.serve.stores.base import Store, Table
from dips.sketch.records import Sketch, empty


@dataclass(eq=False)
class States:
    """One row per user of a batch. Items are codes of the store's vocabulary."""

    sketch: Sketch  # [users, width]: as many slots as the widest needs
    waiting: Sketch  # [users, depth]: oldest first; the last slot is free
    seen: Tensor  # [users]
    last: Tensor  # [users] 1 + the last sequence number; 0 where there was none

    @property
    def depth(self) -> int:
        """How many interactions may wait."""
        return self.waiting.position.shape[1]

    @classmethod
    def of(cls, rows: Rows, size: int, longest: int) -> States:
        """From records, with room for `size` entries and one arrival more than `longest`."""
        kept, waiting = torch.from_numpy(rows.kept), torch.from_numpy(rows.waiting)
        width = max(size, int(rows.kept.max(initial=0)))
        depth = max(longest, int(rows.waiting.max(initial=0)) + 1)
        return cls(
            _part(rows, torch.zeros_like(kept), kept, width),
            _part(rows, kept, waiting, depth),
            torch.from_numpy(rows.seen),
            torch.from_numpy(rows.last),
        )

    def rows(self, policy: int) -> Rows:
        """For records, as changed by this version of the policy."""
        kept, waiting = self.sketch.present.sum(1), self.waiting.present.sum(1)
        number = np.full(len(kept), policy, np.int64)
        counts = (kept.numpy(), waiting.numpy(), number, self.seen.numpy(), self.last.numpy())
        if not waiting.any():
            return Rows(*counts, **{n: f.numpy() for n, f in self.sketch._asdict().items()})
        width = int((kept + waiting).max()) if len(kept) else 0
        slot = torch.arange(width)
        late = slot >= kept[:, None]  # these slots take what waits
        first = slot.expand(len(kept), -1).clamp_max(self.sketch.position.shape[1] - 1)
        second = (slot - kept[:, None]).clamp(0, self.depth - 1)
        there = slot < (kept + waiting)[:, None]
        fields = {}
        for name in Sketch._fields:
            held, new = getattr(self.sketch, name), getattr(self.waiting, name)
            joined = torch.where(late, new.gather(1, second), held.gather(1, first))
            blank = -1 if name == "position" else 0
            fields[name] = torch.where(there, joined, blank).numpy()
        return Rows(*counts, **fields)


def stored(store: Store, piece: int) -> Iterator[tuple[list[bytes], Rows]]:
    """All users of a store and their states, so many at a time."""
    source = store.scan(Table.USERS)
    while pairs := list(islice(source, piece)):
        keys = [key for key, _ in pairs]
        yield keys, decode(keys, [record for _, record in pairs])


def _part(rows: Rows, first: Tensor, count: Tensor, width: int) -> Sketch:
    """`count` entries of each row from slot `first` on, in `width` slots."""
    slots = rows.item.shape[1]
    if slots == width and np.array_equal(rows.kept + rows.waiting, count):  # all of it, as it is
        return Sketch(*(torch.from_numpy(getattr(rows, name)) for name in Sketch._fields))
    blank = empty(len(count), width)
    if slots == 0:
        return Sketch(*(field.clone() for field in blank))  # they are changed in place
    slot = torch.arange(width)
    there = slot < count[:, None]
    source = (first[:, None] + slot).clamp_max(slots - 1)
    return Sketch(*(
        torch.where(there, torch.from_numpy(getattr(rows, name)).gather(1, source), field)
        for name, field in zip(Sketch._fields, blank, strict=True)
    ))  # fmt: skip
