"""Training in several processes: which users belong to which rank, and its rows of each batch.

All processes plan all batches alike: their order and size are a function of seed and epoch over all
users. Each rank then trains on the rows of its own users.
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
from dips.training.batches import TrainingBlock
from dips.training.config import TrainConfig
from dips.training.policy_batches import PolicyBatch, RefreshTable

Make = Callable[[Trace], TrainingBlock]
"""From a trace to the block that is trained on."""


class UserPartition(ABC):
    """The users of one rank."""

    @abstractmethod
    def local_users(self, stream: Stream) -> Stream:
        """Return the users of a stream that are rolled out here."""

    @abstractmethod
    def block(self, all_users: Callable[[], Stream], trace: Trace, make: Make) -> TrainingBlock:
        """Return the block of local rollouts, planned over the users of all ranks.

        Args:
            all_users: Returns the users of all ranks.
            trace: Rollout of the local users.
            make: Makes a block from a trace.
        """


@final
class AllUsers(UserPartition):
    """All users: there is one process."""

    def local_users(self, stream: Stream) -> Stream:
        """Return the stream itself."""
        return stream

    def block(self, all_users: Callable[[], Stream], trace: Trace, make: Make) -> TrainingBlock:
        """Return the block of the trace itself."""
        del all_users
        return make(trace)


@final
@dataclass(frozen=True)
class RankPartition(UserPartition):
    """Every `size`-th user from the `rank`-th on. Users are sorted by length: shares are similar.

    With fewer users than processes the first user is rolled out here too, so that no rollout is
    empty. Nothing is trained on it.
    """

    rank: int
    size: int

    def local_users(self, stream: Stream) -> Stream:
        """Return the users of this rank."""
        runs, width = stream.start.shape
        places = torch.arange(self.rank, width, self.size, device=stream.start.device)
        if not int(stream.length[:, places].sum()):
            places = torch.zeros(1, dtype=torch.int64, device=stream.start.device)
        return stream.take(places.expand(runs, -1))

    def block(self, all_users: Callable[[], Stream], trace: Trace, make: Make) -> TrainingBlock:
        """Return a block that is planned over the users of all ranks."""
        stream = all_users()
        whole = FullHistoryRollout(stream).trace
        outline: Trace = whole
        if isinstance(trace, StoredTrace):
            nothing = torch.zeros(len(whole.event), 0, dtype=torch.int32, device=whole.event.device)
            inputs = RecordedInputs(whole.user, whole.user, {})
            fields = (whole.columns, whole.event, whole.user, whole.step, whole.run_rows)
            outline = StoredTrace(*fields, nothing, nothing, None, inputs=inputs)
        return ShardedBlock(make(outline), trace, self._places(stream, whole))

    def _places(self, stream: Stream, whole: FullHistoryTrace) -> Tensor:
        """Return the local row of each prediction of all ranks, [rows]; -1: another rank's.

        Local rows are in the same order in both.
        """
        place = torch.arange(stream.start.shape[1], device=whole.event.device)
        mine = (place % self.size == self.rank).expand_as(stream.start).flatten()
        counted = (stream.length - stream.warmup).flatten()
        row_is_mine = torch.repeat_interleave(mine, counted)
        return torch.where(row_is_mine, row_is_mine.cumsum(0) - 1, -1)


def partition_users(process_group: ProcessGroup) -> UserPartition:
    """The users of this process."""
    return (
        AllUsers()
        if process_group.world_size == 1
        else RankPartition(process_group.rank, process_group.world_size)
    )


@final
@dataclass(frozen=True, eq=False)
class ShardedBlock(TrainingBlock):
    """A block planned over the rows of all ranks, of which this rank has some."""

    plan: TrainingBlock
    trace: Trace
    place: Tensor  # [rows of the plan] rows of the trace; -1: not here

    @property
    def is_last(self) -> bool:  # type: ignore[override]
        """Return whether it is the last block of its users."""
        return self.plan.is_last

    def batches(self, seeds: Sequence[int], epoch: int, size: int) -> Sequence[Tensor]:
        """Return the batches of all ranks."""
        return self.plan.batches(seeds, epoch, size)

    def policy_batches(
        self, refresh_table: RefreshTable, seeds: Sequence[int], epoch: int, config: TrainConfig
    ) -> list[PolicyBatch]:
        """Return the policy batches of all ranks."""
        return self.plan.policy_batches(refresh_table, seeds, epoch, config)

    def local_rows(self, batch: Tensor) -> Tensor:
        """Return the rows of local users."""
        rows = self._here(batch)
        return rows.gather(1, _first(rows))

    def local_policy_batch(self, policy_batch: PolicyBatch) -> PolicyBatch:
        """Return the predictions and decisions of local users."""
        predicted, decided = self._here(policy_batch.predicted), self._here(policy_batch.decided)
        stay, choices = _first(predicted), _first(decided)
        slot = torch.zeros_like(predicted)  # where each prediction has gone
        slot.scatter_(1, stay, torch.arange(stay.shape[1], device=stay.device).expand_as(stay))
        runs, _, longest = policy_batch.prediction_places.shape
        places = policy_batch.prediction_places.gather(
            1, choices[..., None].expand(-1, -1, longest)
        )
        moved = slot.gather(1, places.clamp_min(0).flatten(1)).view(runs, -1, longest)
        decided = decided.gather(1, choices)
        there = (places >= 0) & (decided >= 0)[..., None]
        return PolicyBatch(predicted.gather(1, stay), decided, torch.where(there, moved, -1))

    def _here(self, rows: Tensor) -> Tensor:
        return torch.where(rows >= 0, self.place[rows.clamp_min(0)], -1)


def _first(rows: Tensor) -> Tensor:
    """Return the places of present rows, in order, [runs, n]; n is that of the fullest run."""
    count = max(1, int((rows >= 0).sum(1).max()))
    return (rows < 0).long().sort(dim=1, stable=True).indices[:, :count]
