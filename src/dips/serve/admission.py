"""Which events count: not those that came before, and not old ones of users who were forgotten.

Pure: decides from what is known of the users and ids of a batch, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dips.serve.duplicates import Glance, id_key
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


def admit(
    events: Sequence[Event],
    last: dict[str, int],
    gone: Mapping[str, int],
    damaged: Mapping[str, str],
    ids: Glance,
    tally: Tally,
) -> list[Event]:
    """The events that are applied; what becomes of the others goes into the tally.

    `last`: 1 + the last sequence number by user, moved on here; `gone`: the same of those who were
    forgotten and have no record; `damaged`: users whose record cannot be read, and why.
    """
    applied: list[Event] = []
    returned: set[str] = set()
    for event in events:
        user, number = event.user, None if event.seq is None else event.seq + 1
        if user in damaged:
            tally.refused.append((event, f"the record of user '{user}' {damaged[user]}"))
        elif user in gone and user not in returned and (number or 0) <= gone[user]:
            tally.forgotten += 1
        elif _known(event, number, last[user], ids):
            tally.repeated += 1
        else:
            returned.add(user)
            last[user] = number or last[user]
            applied.append(event)
    tally.applied += len(applied)
    return applied


def _known(event: Event, number: int | None, last: int, ids: Glance) -> bool:
    if number is not None:
        return number <= last
    return event.id is not None and not ids.is_new(id_key(event.user, event.id))
