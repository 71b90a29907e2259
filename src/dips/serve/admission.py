"""Which events count: not those that came before, and not old ones of users who were forgotten.

Pure: decides from what is known of the users and ids of a batch, in order of arrival. A batch in
which all events count, as most do, is seen to be such at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dips.data.interactions import Int64
from dips.serve.deduplication import Glance, id_key
from dips.serve.events import Event

Refusal = tuple[Any, str]
"""A bad event, as it was given, and the reason."""


@dataclass
class Tally:
    """What became of some events."""

    applied: int = 0
    repeated: int = 0
    """Not applied: the id was seen before, or the sequence number is not above the last."""
    forgotten: int = 0
    """Not applied: the user was forgotten, and the event may be an old one."""
    refused: list[Refusal] = field(default_factory=list)
    """Not applied: bad events, each with the reason."""

    def counts(self) -> dict[str, int]:
        """How many of each."""
        numbers = {"applied": self.applied, "repeated": self.repeated}
        return {**numbers, "forgotten": self.forgotten, "refused": len(self.refused)}

    def add(self, other: Tally) -> None:
        """Put two together."""
        self.applied += other.applied
        self.repeated += other.repeated
        self.forgotten += other.forgotten
        self.refused += other.refused


class Known(NamedTuple):
    """What is known of the users of a batch, beside their records."""

    gone: Mapping[str, int]
    """1 + the last sequence number of those who were forgotten and have no record."""
    damaged: Mapping[str, str]
    """Whose record cannot be read, and why."""
    ids: Glance


class Admitted(NamedTuple):
    """The events of a batch that are applied."""

    events: Sequence[Event]
    row: Int64  # [events] which of the users
    last: Int64  # [users] 1 + the last sequence number after them


def admit(events: Sequence[Event], row: Int64, last: Int64, known: Known, tally: Tally) -> Admitted:
    """The events that are applied; what becomes of the others goes into the tally.

    `row` [events] tells whose they are; `last` [users] 1 + the last sequence number before them.
    """
    seq = [event.seq for event in events]
    if not known.gone and not known.damaged and None not in seq:
        number = np.array(seq, np.int64) + 1
        if _rising(row, number, last):
            last = last.copy()
            last[row] = number  # of several the last one stays
            tally.applied += len(events)
            return Admitted(events, row, last)
    return admit_each(events, row, last, known, tally)


def admit_each(
    events: Sequence[Event], row: Int64, last: Int64, known: Known, tally: Tally
) -> Admitted:
    """The same, event by event."""
    (gone, damaged, ids), after = known, last.tolist()
    applied: list[int] = []
    returned: set[str] = set()
    for place, (event, whose) in enumerate(zip(events, row.tolist(), strict=True)):
        user, number = event.user, None if event.seq is None else event.seq + 1
        if user in damaged:
            tally.refused.append((event, f"the record of user '{user}' {damaged[user]}"))
        elif user in gone and user not in returned and (number or 0) <= gone[user]:
            tally.forgotten += 1
        elif _known(event, number, after[whose], ids):
            tally.repeated += 1
        else:
            returned.add(user)
            after[whose] = number or after[whose]
            applied.append(place)
    tally.applied += len(applied)
    return Admitted([events[n] for n in applied], row[applied], np.array(after, np.int64))


def _rising(row: Int64, number: Int64, last: Int64) -> bool:
    """Whether every number is above those of the same row before it, and above the last one."""
    order = np.argsort(row, kind="stable")
    row, number = row[order], number[order]
    before = last[row]
    again = np.flatnonzero(row[1:] == row[:-1])
    before[again + 1] = number[again]
    return bool((number > before).all())


def _known(event: Event, number: int | None, last: int, ids: Glance) -> bool:
    if number is not None:
        return number <= last
    return event.id is not None and not ids.is_new(id_key(event.user, event.id))
