"""Decide which events of a batch are applied. Reads and writes no store.

Events are decided in order of arrival. An event is not applied if

- the user's record is damaged: it is refused,
- its sequence number is too far above the user's last one: it is refused,
- the user was erased and the event may be a replay: it is counted as forgotten,
- it is a duplicate (`dips.serve.deduplication`): it is counted as repeated.

A batch without any of these, which is the usual case, is recognised in one vectorised check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dips.data.interactions import Int64
from dips.serve.deduplication import BatchIds, are_all_new, is_duplicate, is_jump
from dips.serve.events import Event


class RefusedEvent(NamedTuple):
    """An invalid event."""

    event: Any
    """The event as it was given."""
    reason: str


@dataclass
class CommitResult:
    """What became of the events of one or more commits."""

    applied: int = 0
    repeated: int = 0
    """Duplicates, not applied: see `dips.serve.deduplication`."""
    forgotten: int = 0
    """Not applied: the user was erased, and the event may be a replay."""
    refused: list[RefusedEvent] = field(default_factory=list)
    """Invalid events, not applied."""

    def counts(self) -> dict[str, int]:
        """Return the number of events of each kind, by name."""
        numbers = {"applied": self.applied, "repeated": self.repeated}
        return {**numbers, "forgotten": self.forgotten, "refused": len(self.refused)}

    def add(self, other: CommitResult) -> None:
        """Add the events of another commit."""
        self.applied += other.applied
        self.repeated += other.repeated
        self.forgotten += other.forgotten
        self.refused += other.refused


@dataclass(frozen=True)
class Admission:
    """Rules by which the events of one batch are applied or not."""

    tombstones: Mapping[str, int]
    """Next sequence number of erased users that have no record."""
    damaged: Mapping[str, str]
    """Why a user's record cannot be read, by user."""
    ids: BatchIds
    """Event ids of the batch."""
    result: CommitResult
    """Counts what becomes of the events."""

    def admit(
        self, events: Sequence[Event], row: Int64, next_seq: Int64
    ) -> tuple[Sequence[Event], Int64, Int64]:
        """Decide which events are applied, and count all of them in `result`.

        Args:
            events: The events of a batch, in order of arrival.
            row: Which user each event belongs to, [events].
            next_seq: The smallest sequence number that is accepted from each user, [users].

        Returns:
            The applied events; which user each of them belongs to, [applied]; and `next_seq` after
            them, [users].
        """
        given = [event.seq for event in events]
        if not self.tombstones and not self.damaged and None not in given:
            seq = np.array(given, np.int64)
            if are_all_new(row, seq, next_seq):
                next_seq = next_seq.copy()
                next_seq[row] = seq + 1  # of several events of a user the last one counts
                self.result.applied += len(events)
                return events, row, next_seq
        return self.admit_each(events, row, next_seq)

    def admit_each(
        self, events: Sequence[Event], row: Int64, next_seq: Int64
    ) -> tuple[Sequence[Event], Int64, Int64]:
        """Decide event by event; the reference for `admit`, with its arguments and results."""
        after, applied, readmitted = next_seq.tolist(), list[int](), set[str]()
        for index, (event, user_row) in enumerate(zip(events, row.tolist(), strict=True)):
            user, seq = event.user, -1 if event.seq is None else event.seq
            if user in self.damaged:
                reason = f"the record of user '{user}' {self.damaged[user]}"
                self.result.refused.append(RefusedEvent(event, reason))
            elif user not in readmitted and seq < self.tombstones.get(user, -1):
                self.result.forgotten += 1
            elif is_jump(seq, after[user_row]):
                reason = (
                    f"seq {seq} is too far above the last one of user '{user}', "
                    f"{after[user_row] - 1}: send a lower one, or see 'dips store readmit'"
                )
                self.result.refused.append(RefusedEvent(event, reason))
            elif is_duplicate(event, after[user_row], self.ids):
                self.result.repeated += 1
            else:
                readmitted.add(user)
                after[user_row] = seq + 1 if seq >= 0 else after[user_row]
                applied.append(index)
        self.result.applied += len(applied)
        return [events[n] for n in applied], row[applied], np.array(after, np.int64)
