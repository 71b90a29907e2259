"""Events: who met what. From JSON to checked values; a bad one is refused with a reason.

Knows nothing of stores or sketches. Fields: user, item, rating, time (seconds), and id or seq: an
event id, or a number that grows with every event of the user. Other fields are left alone, unless
the run was trained on side information of that name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dips.data.interactions import Int64, Side, Strings
from dips.data.side_information import SideInformation
from dips.errors import DataError
from dips.model.trained_model import TrainedModel
from dips.serve.records import MOST_LAST

LONGEST_NAME = 512
"""Most bytes of a user, an item or an event id."""
LONGEST_LINE = 1 << 16
"""Most bytes of a line."""
MOST_TIME = 2**53
"""Times are whole seconds below this, before or after 1970."""


class EventError(DataError):
    """An event that is refused; the message names the field."""


@dataclass(frozen=True, slots=True)
class Event:
    """One interaction of a user."""

    user: str
    item: str
    rating: float | None = None
    time: int | None = None
    id: str | None = None
    """Of an event id within the window the first event counts."""
    seq: int | None = None
    """Only events above the user's last sequence number count."""
    side: Mapping[str, Any] = field(default_factory=dict)
    """Further fields, for runs that were trained on them."""


def read_line(line: bytes) -> Event:
    """An event from a line of JSON."""
    if len(line) > LONGEST_LINE:
        raise EventError(f"the line has {len(line)} bytes; {LONGEST_LINE} is the most")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EventError(f"the line is not JSON: {error}") from None
    return read_event(values)


def read_event(values: Any) -> Event:
    """An event from a JSON object."""
    if not isinstance(values, Mapping):
        raise EventError(f"an event is an object with user and item, not {_short(values)}")
    known = {"user", "item", "rating", "time", "id", "seq"}
    given = {name: value for name, value in values.items() if value is not None}
    if "id" in given and "seq" in given:
        raise EventError("id and seq: give one of them")
    return Event(
        user=_name(given, "user"),
        item=_name(given, "item"),
        rating=_number(given, "rating") if "rating" in given else None,
        time=math.floor(_number(given, "time", MOST_TIME)) if "time" in given else None,
        id=_name(given, "id") if "id" in given else None,
        seq=_sequence(given["seq"]) if "seq" in given else None,
        side={name: value for name, value in given.items() if name not in known},
    )


@dataclass(frozen=True)
class Rules:
    """What a run asks of events."""

    explicit: bool
    low: float
    high: float
    sides: SideInformation

    @classmethod
    def of(cls, trained: TrainedModel) -> Rules:
        """The rules of this run."""
        return cls(trained.explicit, trained.spec.low, trained.spec.high, trained.sides)

    def check(self, event: Event) -> None:
        """Refuse what the run cannot use."""
        if self.explicit and event.rating is None:
            raise EventError("rating is missing, and the run predicts ratings")
        if self.explicit and not self.low <= (event.rating or 0.0) <= self.high:
            scale = f"the run's scale from {self.low:g} to {self.high:g}"
            raise EventError(f"rating {event.rating!r} is outside {scale}")
        if self.sides.clock is not None and event.time is None:
            raise EventError("time is missing, and the run was trained on times")

    def pack(self, events: Sequence[Event]) -> Int64:
        """[events] side information as one number each; what is missing is unknown."""
        packed = np.zeros(len(events), np.int64)
        for column in self.sides.columns:
            values = [event.side.get(column.name) for event in events]
            if column.names:
                texts = Strings.of("" if value is None else str(value) for value in values)
                side = Side(np.arange(len(events), dtype=np.int32), texts)
            else:
                side = Side(np.array([_plain(value) for value in values], np.float32))
            packed |= column.codes(side) << column.shift
        if self.sides.clock is not None:
            times = np.array([event.time or 0 for event in events], np.float64)
            packed |= self.sides.clock.codes(Side(times))
        return packed


def _name(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < MOST_LAST else None
    if not isinstance(value, str) or not value:
        raise EventError(f"{key} must be a text or a whole number, not {_short(values.get(key))}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise EventError(f"{key} is not valid Unicode") from None
    if size > LONGEST_NAME:
        raise EventError(f"{key} has {size} bytes; {LONGEST_NAME} is the most")
    return value


def _number(values: Mapping[str, Any], key: str, most: float = 3e38) -> float:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < most:
        raise EventError(f"{key} must be a number, not {_short(value)}")
    return value


def _sequence(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_LAST:
        raise EventError(f"seq must be a whole number from 0 on, not {_short(value)}")
    return value


def _plain(value: Any) -> float:
    """A number, or not a number."""
    return float(value) if isinstance(value, int | float) else math.nan


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
