"""Parse and validate events: interactions of users, as JSON or as keyword arguments.

Knows nothing of stores or sketches. Fields of an event:

- user, item: a text or a whole number.
- rating: a number. time: seconds.
- id or seq: an event id, or a sequence number that grows with every event of the user.
- Other fields are ignored, unless the model was trained on side information of that name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dips.data.interactions import EventColumn, Int64, Strings
from dips.data.side_information import SideInformation
from dips.model.trained_model import TrainedModel
from dips.serve.fields import EventError as EventError
from dips.serve.fields import parse_name, parse_number, parse_seq, parse_time, shorten

MAX_LINE_BYTES = 1 << 16
"""Most bytes of a line."""
MAX_TIME = 2**53
"""Times are whole seconds before or after 1970, less than this."""
MAX_NUMBER = 3e38
"""Ratings must fit into 32-bit floats."""


@dataclass(frozen=True, slots=True)
class Event:
    """One interaction of a user.

    Example:
        >>> parse_event({"user": "alice", "item": 17, "rating": 5, "seq": 1}).item
        '17'
    """

    user: str
    item: str
    rating: float | None = None
    time: int | None = None
    """Seconds since 1970."""
    id: str | None = None
    """Event id. Later events of the user with the same id are duplicates (within the window)."""
    seq: int | None = None
    """Sequence number. Events that are not above the user's last number are duplicates."""
    side: Mapping[str, Any] = field(default_factory=dict)
    """Further fields: side information by name."""

    def __post_init__(self) -> None:
        """Check the fields, and convert them to their types.

        Raises:
            EventError: A field is invalid.
        """
        if self.id is not None and self.seq is not None:
            raise EventError("id and seq: give one of them")
        self._set("user", parse_name(self.user, "user"))
        self._set("item", parse_name(self.item, "item"))
        if self.rating is not None:
            self._set("rating", parse_number(self.rating, "rating", MAX_NUMBER))
        if self.time is not None:
            self._set("time", parse_time(self.time, MAX_TIME))
        if self.id is not None:
            self._set("id", parse_name(self.id, "id"))
        if self.seq is not None:
            self._set("seq", parse_seq(self.seq))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


FIELDS = ("user", "item", "rating", "time", "id", "seq")
"""Names of the fields of an event, in their order; all others are side information."""
EventLike = Event | Mapping[str, Any]
"""An event, or the JSON object of one."""


def parse_line(line: bytes) -> Event:
    """Parse an event from a line of JSON.

    Args:
        line: One JSON object, without the line break.

    Returns:
        The event.

    Raises:
        EventError: The line is too long, is not JSON, or a field is invalid.
    """
    if len(line) > MAX_LINE_BYTES:
        raise EventError(f"the line has {len(line)} bytes; at most {MAX_LINE_BYTES} are allowed")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EventError(f"the line is not JSON: {error}") from None
    return parse_event(values)


def parse_event(values: Any) -> Event:
    """Parse an event from a JSON object.

    Args:
        values: Fields by name. A field with the value None counts as missing.

    Returns:
        The event.

    Raises:
        EventError: `values` is not an object, or a field is missing or invalid.
    """
    if not isinstance(values, Mapping):
        raise EventError(f"an event is an object with user and item, not {shorten(values)}")
    given = {name: value for name, value in values.items() if value is not None}
    side = {name: value for name, value in given.items() if name not in FIELDS}
    fields: dict[str, Any] = {name: given.get(name) for name in FIELDS}
    return Event(**fields, side=side)


@dataclass(frozen=True)
class EventSchema:
    """Fields that a trained model needs in its events."""

    explicit: bool
    """Whether the model predicts ratings: then each event needs one."""
    low: float
    """Lowest rating."""
    high: float
    """Highest rating."""
    sides: SideInformation
    """Side information that the model was trained on."""

    @classmethod
    def from_model(cls, trained: TrainedModel) -> EventSchema:
        """Return the schema of a trained model's events."""
        low, high = trained.rating_range or (trained.spec.low, trained.spec.high)
        return cls(trained.explicit, low, high, trained.side)

    def validate(self, event: Event) -> None:
        """Check that the model can use an event.

        Args:
            event: The event to check.

        Raises:
            EventError: A rating or a time is missing, or a rating is out of range.
        """
        if self.explicit and event.rating is None:
            raise EventError("rating is missing, and the run predicts ratings")
        if self.explicit and not self.low <= (event.rating or 0.0) <= self.high:
            scale = f"the run's scale from {self.low:g} to {self.high:g}"
            raise EventError(f"rating {event.rating!r} is outside {scale}")
        if self.sides.clock is not None and event.time is None:
            raise EventError("time is missing, and the run was trained on times")

    def pack_side(self, events: Sequence[Event]) -> Int64:
        """Return the side information of events as one number each, [events]; 0 bits: unknown."""
        packed = np.zeros(len(events), np.int64)
        for column in self.sides.columns:
            values = [event.side.get(column.name) for event in events]
            if column.names:
                texts = Strings.of("" if value is None else str(value) for value in values)
                side = EventColumn(np.arange(len(events), dtype=np.int32), texts)
            else:
                side = EventColumn(np.array([_to_float(value) for value in values], np.float32))
            packed |= column.codes(side) << column.shift
        if self.sides.clock is not None:
            times = np.array([event.time or 0 for event in events], np.float64)
            packed |= self.sides.clock.codes(EventColumn(times))
        return packed


def newest_time(events: Sequence[Event]) -> int | None:
    """Return the latest time of some events; None where no event has one."""
    return max((event.time for event in events if event.time is not None), default=None)


def _to_float(value: Any) -> float:
    """Return a number, or NaN for what is not one."""
    return float(value) if isinstance(value, int | float) else math.nan
