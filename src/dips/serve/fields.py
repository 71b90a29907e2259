"""Check the fields of events: names, numbers, sequence numbers. Scalars of numpy are welcome."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from dips.errors import DataError

MAX_NAME_BYTES = 512
"""Most bytes of a user, an item or an event id."""
MAX_WHOLE = 2**63 - 1
"""Names and numbers that are whole numbers are below this."""
MAX_SEQ = 2**62
"""Sequence numbers are below this: nanoseconds since 1970, until the year 2116."""


class EventError(DataError):
    """Raised when an event, or the name of a user, is refused. The message names the field."""


def parse_name(value: Any, key: str) -> str:
    """Return a name as text.

    Args:
        value: A text or a whole number.
        key: The field, for the message.

    Raises:
        EventError: It is neither, is empty or too long, or is not valid Unicode.

    Example:
        >>> parse_name(17, "user")
        '17'
    """
    name = value if type(value) is str else _to_text(value)
    if not name:
        raise EventError(f"{key} must be a text or a whole number, not {shorten(value)}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise EventError(f"{key} is not valid Unicode") from None
    if size > MAX_NAME_BYTES:
        raise EventError(f"{key} has {size} bytes; at most {MAX_NAME_BYTES} are allowed")
    return name


def parse_number(value: Any, key: str, most: float) -> float:
    """Return a number, whose absolute value must be below `most`.

    Raises:
        EventError: It is not a number, or is out of range.
    """
    if type(value) not in (int, float):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise EventError(f"{key} must be a number, not {shorten(value)}")
        value = int(value) if isinstance(value, Integral) else float(value)
    if not abs(value) < most:
        raise EventError(f"{key} must be a number, not {shorten(value)}")
    number: float = value
    return number


def parse_time(value: Any, most: float) -> int:
    """Return a time in whole seconds, rounded down.

    Raises:
        EventError: It is not a number, or is out of range.
    """
    return math.floor(parse_number(value, "time", most))


def parse_seq(value: Any) -> int:
    """Return a sequence number.

    Raises:
        EventError: It is not a whole number from 0 on.
    """
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise EventError(f"seq must be a whole number from 0 on, not {shorten(value)}")
        value = int(value)
    if value < 0:
        raise EventError(f"seq must be a whole number from 0 on, not {shorten(value)}")
    if value >= MAX_SEQ:
        raise EventError(f"seq must be below {MAX_SEQ}, not {shorten(value)}")
    seq: int = value
    return seq


def shorten(value: Any) -> str:
    """Return a value for a message, in at most 60 characters."""
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def _to_text(value: Any) -> str:
    """Return a text or a whole number as text; an empty one for anything else."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Integral) or abs(int(value)) >= MAX_WHOLE:
        return ""
    return str(int(value))
