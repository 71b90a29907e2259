"""Who walks in which process, and what of a batch is this process's.

All processes plan all batches, each for itself and alike: order and size of steps are a function of
seed and epoch over all users. Then each learns from the rows of its own users, and no one else's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.numerics.process_group import ProcessGroup
from dips.rollout.rollout import FullHistoryRollout
from dips.rollout.trace import FullHistoryTrace, RecordedInputs, StoredTrace, Trace
from dips.stream.users import Stream
from dips.training.batches import Block
from dips.training.config import TrainConfig
from dips.training.policy_batches import Clock, PolicyBatch

Make = Callable[[Trace], Block]
"""A block from the walks that it is about."""


class Shard(ABC):
    """The users of one process."""

    @abstractmethod
    def own(self, stream: Stream) -> Stream:
        """Those of the stream who walk here."""

    @abstractmethod
    def block(self, everyone: Callable[[], Stream], trace: Trace, make: Make) -> Block:
        """What is learned from own walks, as it was planned for everyone's."""


@final
class Everyone(Shard):
    """All of them: there is one process."""

    def own(self, stream: Stream) -> Stream:
        """Itself."""
        return stream

    def block(self, everyone: Callable[[], Stream], trace: Trace, make: Make) -> Block:
        """What is walked is what is planned."""
        del everyone
        return make(trace)


@final
@dataclass(frozen=True)
class Share(Shard):
    """Every `size`-th user from the `rank`-th on; users are sorted by length, so shares are alike.

    Where there are fewer users than processes the first one stands in, so that no walk is empty;
    nothing is learned from a stand-in.
    """

    rank: int
    size: int

    def own(self, stream: Stream) -> Stream:
        """Those in this process's places."""
        runs, width = stream.start.shape
        places = torch.arange(self.rank, width, self.size, device=stream.start.device)
        if not int(stream.length[:, places].sum()):
            places = torch.zeros(1, dtype=torch.int64, device=stream.start.device)
        return stream.take(places.expand(runs, -1))

    def block(self, everyone: Callable[[], Stream], trace: Trace, make: Make) -> Block:
        """Plan over an outline of everyone's walk."""
        stream = everyone()
        whole = FullHistoryRollout(stream).trace
        outline: Trace = whole
        if isinstance(trace, StoredTrace):
            nothing = torch.zeros(len(whole.event), 0, dtype=torch.int32, device=whole.event.device)
            asked = RecordedInputs(whole.user, whole.user, {})  # who is who is all that is asked
            fields = (whole.columns, whole.event, whole.user, whole.step, whole.run_rows)
            outline = StoredTrace(*fields, nothing, nothing, None, asked=asked)
        return Shared(make(outline), trace, self._places(stream, whole))

    def _places(self, stream: Stream, whole: FullHistoryTrace) -> Tensor:
        """[rows] where each prediction of everyone's walk is in this process's; -1: elsewhere.

        Own rows are in the same order in both.
        """
        place = torch.arange(stream.start.shape[1], device=whole.event.device)
        mine = (place % self.size == self.rank).expand_as(stream.start).flatten()
        counted = (stream.length - stream.warmup).flatten()
        row_is_mine = torch.repeat_interleave(mine, counted)
        return torch.where(row_is_mine, row_is_mine.cumsum(0) - 1, -1)


def shard_of(process_group: ProcessGroup) -> Shard:
    """The users of this process."""
    return Everyone() if process_group.world_size == 1 else Share(process_group.rank, process_group.world_size)


@final
@dataclass(frozen=True, eq=False)
class Shared(Block):
    """A block planned over everyone's rows, of which this process has some."""

    plan: Block
    trace: Trace
    place: Tensor  # [rows of the plan] rows of the trace; -1: not here

    @property
    def ends(self) -> bool:  # type: ignore[override]
        """As planned."""
        return self.plan.ends

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Everyone's."""
        return self.plan.batches(seeds, epoch, size)

    def policy_batches(
        self, clock: Clock, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Everyone's."""
        return self.plan.policy_batches(clock, seeds, epoch, config)

    def own(self, batch: Tensor) -> Tensor:
        """Rows of own users, the rest cut off."""
        rows = self._here(batch)
        return rows.gather(1, _first(rows))

    def own_policy_batch(self, policy_batch: PolicyBatch) -> PolicyBatch:
        """Predictions and decisions of own users, the rest cut off."""
        predicted, decided = self._here(policy_batch.predicted), self._here(policy_batch.decided)
        stay, choices = _first(predicted), _first(decided)
        slot = torch.zeros_like(predicted)  # where each prediction has gone
        slot.scatter_(1, stay, torch.arange(stay.shape[1], device=stay.device).expand_as(stay))
        runs, _, hold = policy_batch.held.shape
        held = policy_batch.held.gather(1, choices[..., None].expand(-1, -1, hold))
        moved = slot.gather(1, held.clamp_min(0).flatten(1)).view(runs, -1, hold)
        decided = decided.gather(1, choices)
        there = (held >= 0) & (decided >= 0)[..., None]
        return PolicyBatch(predicted.gather(1, stay), decided, torch.where(there, moved, -1))

    def _here(self, rows: Tensor) -> Tensor:
        return torch.where(rows >= 0, self.place[rows.clamp_min(0)], -1)


def _first(rows: Tensor) -> Tensor:
    """[runs, n] places of what is there, in order; as many as the fullest run needs, at least 1."""
    count = max(1, int((rows >= 0).sum(1).max()))
    return (rows < 0).long().sort(dim=1, stable=True).indices[:, :count]
