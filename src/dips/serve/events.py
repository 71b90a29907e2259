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
from dips.errors import DataError
from dips.model.trained_model import TrainedModel
from dips.serve.records import MAX_SEQ

MAX_NAME_BYTES = 512
"""Most bytes of a user, an item or an event id."""
MAX_LINE_BYTES = 1 << 16
"""Most bytes of a line."""
MAX_TIME = 2**53
"""Times are whole seconds before or after 1970, less than this."""
MAX_NUMBER = 3e38
"""Ratings must fit into 32-bit floats."""


class EventError(DataError):
    """Raised when an event is refused. The message names the field."""


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
        raise EventError(f"an event is an object with user and item, not {_shorten(values)}")
    known = {"user", "item", "rating", "time", "id", "seq"}
    given = {name: value for name, value in values.items() if value is not None}
    if "id" in given and "seq" in given:
        raise EventError("id and seq: give one of them")
    return Event(
        user=_parse_name(given, "user"),
        item=_parse_name(given, "item"),
        rating=_parse_number(given, "rating", MAX_NUMBER) if "rating" in given else None,
        time=math.floor(_parse_number(given, "time", MAX_TIME)) if "time" in given else None,
        id=_parse_name(given, "id") if "id" in given else None,
        seq=_parse_seq(given["seq"]) if "seq" in given else None,
        side={name: value for name, value in given.items() if name not in known},
    )


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
    """EventColumn information that the model was trained on."""

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


def parse_name(value: Any, field: str) -> str:
    """Return a name of a user or an item, given as a text or a whole number.

    Args:
        value: The name.
        field: What it names, for the message of the error.

    Raises:
        EventError: The name is invalid.
    """
    return _parse_name({field: value}, field)


def _parse_name(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < MAX_SEQ else None
    if not isinstance(value, str) or not value:
        found = _shorten(values.get(key))
        raise EventError(f"{key} must be a text or a whole number, not {found}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise EventError(f"{key} is not valid Unicode") from None
    if size > MAX_NAME_BYTES:
        raise EventError(f"{key} has {size} bytes; at most {MAX_NAME_BYTES} are allowed")
    return value


def _parse_number(values: Mapping[str, Any], key: str, most: float) -> float:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < most:
        raise EventError(f"{key} must be a number, not {_shorten(value)}")
    return value


def _parse_seq(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_SEQ:
        raise EventError(f"seq must be a whole number from 0 on, not {_shorten(value)}")
    return value


def _to_float(value: Any) -> float:
    """Return a number, or NaN for what is not one."""
    return float(value) if isinstance(value, int | float) else math.nan


def _shorten(value: Any) -> str:
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
