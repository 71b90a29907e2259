"""Encode the records of users as bytes: versioned, with a fixed layout and a checksum.

Knows nothing of stores. A record is a header of 24 bytes and one block per column: item, rating,
time, age, repeats, side. One byte of the header, the layout, says how many bytes each column takes
per entry. Ordinary values take 13 bytes per entry or less, so 8 entries fit into 128 bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dips.errors import DipsError

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

VERSION = 2
"""Version of the layout."""
HEADER = np.dtype([
    ("checksum", "<u4"), ("version", "u1"), ("layout", "u1"), ("kept", "<u2"), ("waiting", "<u2"),
    ("policy", "<u2"), ("seen", "<u4"), ("next_seq", "<u8"),
])  # fmt: skip
COLUMNS = ("item", "rating", "time", "age", "repeats", "side")
WIDTHS = ((3, 4), (0, 2, 4), (0, 4, 8), (2, 4), (0, 1, 4), (0, 8))
"""Bytes that an entry may take in each column; 0 where all values are those of `DEFAULTS`."""
NUMPY_WIDTHS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<i8"}
"""Widths for which numpy has an integer type; the other one is 3 bytes."""
DEFAULTS = {"item": 0, "rating": 0x3F800000, "time": 0, "age": 0, "repeats": 1, "side": 0}
"""Values of a column of width 0; ratings as the bits of a float, here of 1.0."""

NO_RECORD = bytes([0, 0, 0, 0, VERSION]) + bytes(HEADER.itemsize - 5)
"""Decoded in place of a record that does not exist."""


class RecordError(DipsError):
    """Raised when a record is damaged, or has an unknown version."""


class UserRecords(NamedTuple):
    """Decoded records of many users, as columns. Kept entries come first, then waiting ones."""

    kept: Array  # [users] number of entries in the sketch
    waiting: Array  # [users] number of interactions since the last refresh
    policy: Array  # [users] version of the policy that changed the record last
    seen: Array  # [users] number of interactions so far
    next_seq: Array  # [users] 1 + the last sequence number; 0 where there was none
    item: Array  # [users, slots] int64: codes of the store's vocabulary
    rating: Array  # [users, slots] float32
    time: Array  # [users, slots] int64 seconds
    position: Array  # [users, slots] int64: index in the user's history; -1 where empty
    repeats: Array  # [users, slots] int64: repeat count of the item
    side: Array  # [users, slots] int64: packed side information

    def take(self, rows: Any) -> UserRecords:
        """Return the records of some users, given their rows."""
        return UserRecords(*(column[rows] for column in self))


def encode(users: Sequence[bytes], records: UserRecords) -> list[bytes]:
    """Encode the records of users.

    Args:
        users: Names of the users; the checksum of a record covers the name.
        records: Records to encode, one row per user.

    Returns:
        One record per user.
    """
    count = records.kept + records.waiting
    columns = _columns(records, count)
    layout = _layouts(columns)
    encoded: list[bytes] = [b""] * len(users)
    for group in _groups(layout, count):
        length, widths = int(count[group[0]]), _widths(int(layout[group[0]]))
        head = np.zeros(len(group), HEADER)
        head["version"], head["layout"] = VERSION, layout[group]
        for name in ("kept", "waiting", "policy", "seen", "next_seq"):
            head[name] = getattr(records, name)[group]
        blocks = [head.view(np.uint8).reshape(len(group), -1)]
        for name, values, width in zip(COLUMNS, columns, widths, strict=True):
            part = _shift_rating(name, values[group, :length], width)
            if width:
                blocks.append(_to_bytes(part, width))
        body = np.concatenate(blocks, 1)
        stride, flat, places = body.shape[1], body.tobytes(), group.tolist()
        ends = range(stride, len(flat) + 1, stride)
        sums = [
            _checksum(users[n], flat[e - stride + 4 : e]) for n, e in zip(places, ends, strict=True)
        ]
        body[:, :4] = np.array(sums, "<u4").view(np.uint8).reshape(-1, 4)
        flat = body.tobytes()
        for index, end in zip(places, ends, strict=True):
            encoded[index] = flat[end - stride : end]
    return encoded


def decode(users: Sequence[bytes], found: Sequence[bytes | None]) -> UserRecords:
    """Decode the records of users, and check them.

    Args:
        users: Names of the users.
        found: One record per user; None for a user without a record, which decodes as empty.

    Returns:
        The records, one row per user.

    Raises:
        RecordError: A record is damaged, or has an unknown version.
    """
    for user, record in zip(users, found, strict=True):
        if record is not None and (reason := find_fault(user, record)):
            raise RecordError(f"the record of user '{user.decode(errors='replace')}' {reason}")
    return decode_unchecked(found)


def decode_unchecked(found: Sequence[bytes | None]) -> UserRecords:
    """Decode records in which `find_fault` has found nothing; None decodes as an empty record."""
    records = [NO_RECORD if record is None else record for record in found]
    heads = np.frombuffer(b"".join([record[: HEADER.itemsize] for record in records]), HEADER)
    count = heads["kept"].astype(np.int64) + heads["waiting"]
    slots = int(count.max(initial=0))
    columns = {name: np.full((len(records), slots), DEFAULTS[name], np.int64) for name in COLUMNS}
    for group in _groups(heads["layout"], count):
        length, widths = int(count[group[0]]), _widths(int(heads[group[0]]["layout"]))
        raw = np.frombuffer(b"".join(records[i] for i in group.tolist()), np.uint8)
        raw, at = raw.reshape(len(group), -1), HEADER.itemsize
        for name, width in zip(COLUMNS, widths, strict=True):
            if width:
                part = _from_bytes(raw[:, at : at + length * width], width)
                columns[name][group, :length] = _shift_rating(name, part, -width)
            at += length * width
    seen = heads["seen"].astype(np.int64)
    present = np.arange(slots) < count[:, None]
    return UserRecords(
        kept=heads["kept"].astype(np.int64),
        waiting=heads["waiting"].astype(np.int64),
        policy=heads["policy"].astype(np.int64),
        seen=seen,
        next_seq=heads["next_seq"].astype(np.int64),
        item=columns["item"],
        rating=np.where(present, columns["rating"].astype("<u4").view(np.float32), 0),
        time=columns["time"],
        position=np.where(present, seen[:, None] - 1 - columns["age"], -1),
        repeats=np.where(present, columns["repeats"], 0),
        side=columns["side"],
    )


def find_fault(user: bytes, record: bytes) -> str:
    """Return why a record is not a valid record of this user; empty where it is valid.

    Args:
        user: Name of the user.
        record: The record as it was read.
    """
    intact = int.from_bytes(record[:4], "little") == _checksum(user, record[4:])
    if intact and len(record) == _length(record[4:10]):
        return ""
    if len(record) < HEADER.itemsize:
        return "is cut off"
    if record[4] != VERSION:
        return f"has version {record[4]}, this dips reads version {VERSION}: install a newer dips"
    if not intact:
        return "is damaged: restore it from a backup, or forget and readmit the user"
    if record[5] >= math.prod(map(len, WIDTHS)):
        return f"has layout {record[5]}, which does not exist"
    return "has another length than its header says"


@lru_cache(maxsize=1024)
def _length(start: bytes) -> int:
    """Return the length of a record from its bytes 4 to 9; -1 where they are invalid."""
    if len(start) < 6 or start[0] != VERSION or start[1] >= math.prod(map(len, WIDTHS)):
        return -1
    count = int.from_bytes(start[2:4], "little") + int.from_bytes(start[4:6], "little")
    return HEADER.itemsize + count * sum(_widths(start[1]))


def record_length(size: int, waiting: int = 0, layout: int = 0) -> int:
    """Return the length of a record in bytes.

    Args:
        size: Number of entries in the sketch.
        waiting: Number of interactions since the last refresh.
        layout: Layout of the columns; 0 is the narrowest one.
    """
    return HEADER.itemsize + (size + waiting) * sum(_widths(layout))


def _columns(records: UserRecords, count: Array) -> list[Array]:
    """Return the columns as integers, with default values in empty slots."""
    present = np.arange(records.item.shape[1]) < count[:, None]
    bits = np.ascontiguousarray(records.rating, dtype="<f4").view("<u4").astype(np.int64)
    age = records.seen[:, None] - 1 - records.position
    values = (records.item, bits, records.time, age, records.repeats, records.side)
    return [np.where(present, v, DEFAULTS[n]) for n, v in zip(COLUMNS, values, strict=True)]


def _layouts(columns: Sequence[Array]) -> Array:
    """Return the layout of each user: the narrowest width of each column that holds its values."""
    layout: Array = np.zeros(len(columns[0]), np.int64)
    for name, values, widths in zip(COLUMNS, columns, WIDTHS, strict=True):
        choice = np.full(len(values), len(widths) - 1)
        for index in reversed(range(len(widths) - 1)):
            choice[_fits(name, values, widths[index])] = index
        layout = layout * len(widths) + choice
    return layout


def _fits(name: str, values: Array, width: int) -> Array:
    """Return whether all values of a user fit into a width, [users]."""
    if width == 0:
        fits: Array = values == DEFAULTS[name]
    elif name == "rating":
        fits = values & 0xFFFF == 0  # the upper half of the float is enough: whole and half stars
    else:
        fits = (values >= 0) & (values < 1 << 8 * width)
    all_fit: Array = np.all(fits, axis=1)
    return all_fit


def _shift_rating(name: str, values: Array, width: int) -> Array:
    """Keep the upper half of ratings of width 2; a negative width reverses it."""
    if name != "rating" or abs(width) != 2:
        return values
    shifted: Array = values >> 16 if width > 0 else values << 16
    return shifted


def _from_bytes(raw: Bytes, width: int) -> Array:
    """Return integers [users, entries] of a width; only those of 8 bytes have a sign."""
    if width in NUMPY_WIDTHS:
        return np.ascontiguousarray(raw).view(NUMPY_WIDTHS[width]).astype(np.int64)
    low, middle, high = (raw[:, place::3].astype(np.int64) for place in range(3))
    return low | middle << 8 | high << 16


def _to_bytes(numbers: Array, width: int) -> Bytes:
    """Return the bytes [users, entries * width] of integers [users, entries]."""
    raw: Bytes = np.ascontiguousarray(numbers, NUMPY_WIDTHS.get(width, "<u4")).view(np.uint8)
    if width in NUMPY_WIDTHS:
        return raw
    return raw.reshape(*numbers.shape, 4)[:, :, :width].reshape(len(numbers), -1)


@cache
def _widths(layout: int) -> tuple[int, ...]:
    """Return the bytes per entry of each column."""
    widths = []
    for options in reversed(WIDTHS):
        layout, choice = divmod(layout, len(options))
        widths.append(options[choice])
    return tuple(reversed(widths))


def _groups(layout: Array, count: Array) -> Iterator[Array]:
    """Yield the rows of users with equal layout and count, which are coded together."""
    key = layout.astype(np.int64) << 20 | count
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    yield from np.split(order, starts[1:]) if len(order) else ()


def _checksum(user: bytes, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(user))
