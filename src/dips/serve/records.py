"""A user's state as bytes: versioned, fixed layout, checksummed. Knows nothing of stores.

A record is a header of 24 bytes and one block per column: item, rating, time, age, repeats, side.
How wide the entries of a block are is said by one byte of the header; ordinary values take the
narrow form, 13 bytes an entry or less, so that 8 entries fit into 128 bytes.
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
Raw = npt.NDArray[np.uint8]

VERSION = 2
HEADER = np.dtype([
    ("checksum", "<u4"), ("version", "u1"), ("layout", "u1"), ("kept", "<u2"), ("waiting", "<u2"),
    ("policy", "<u2"), ("seen", "<u4"), ("last", "<u8"),
])  # fmt: skip
COLUMNS = ("item", "rating", "time", "age", "repeats", "side")
WIDTHS: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((4,), (4,), (8,), (4,), (4,), (8,)),  # before there were narrow forms
    2: ((3, 4), (0, 2, 4), (0, 4, 8), (2, 4), (0, 1, 4), (0, 8)),
}
"""By version: how many bytes an entry of each column may take; 0 where all are as in `BLANK`."""
PLAIN = {1: "u1", 2: "<u2", 4: "<u4", 8: "<i8"}
"""Widths that numpy has a number for; the other one is 3 bytes."""
BLANK = {"item": 0, "rating": 0x3F800000, "time": 0, "age": 0, "repeats": 1, "side": 0}
"""What a column without bytes holds; ratings as the bits of a float, here of 1.0."""
MOST_SEEN, MOST_LAST, MOST_ITEMS, MOST_ENTRIES = 2**32 - 1, 2**63 - 1, 2**32, 2**16 - 1

NOTHING = bytes([0, 0, 0, 0, VERSION]) + bytes(HEADER.itemsize - 5)
"""Read in the place of a record that is not there."""


class RecordError(DipsError):
    """A record that is not what was written."""


class Rows(NamedTuple):
    """The states of many users: in slots from 0 on first the kept entries, then the waiting."""

    kept: Array  # [users] how many are kept
    waiting: Array  # [users] how many came since the last refresh
    policy: Array  # [users] version of the policy that changed it last
    seen: Array  # [users] interactions so far
    last: Array  # [users] 1 + the last sequence number; 0 where there was none
    item: Array  # [users, slots] int64: codes of the store's vocabulary
    rating: Array  # [users, slots] float32
    time: Array  # [users, slots] int64
    position: Array  # [users, slots] int64
    repeats: Array  # [users, slots] int64
    side: Array  # [users, slots] int64


def encode(users: Sequence[bytes], rows: Rows) -> list[bytes]:
    """One record per user; the checksum covers the user's name, too."""
    count = rows.kept + rows.waiting
    columns = _columns(rows, count)
    layout = _layouts(columns)
    records: list[bytes] = [b""] * len(users)
    for group in _groups(layout, count):
        length, widths = int(count[group[0]]), _widths(VERSION, int(layout[group[0]]))
        head = np.zeros(len(group), HEADER)
        head["version"], head["layout"] = VERSION, layout[group]
        for name in ("kept", "waiting", "policy", "seen", "last"):
            head[name] = getattr(rows, name)[group]
        blocks = [head.view(np.uint8).reshape(len(group), -1)]
        for name, values, width in zip(COLUMNS, columns, widths, strict=True):
            part = _shifted(name, values[group, :length], width)
            if width:
                blocks.append(_bytes(part, width))
        body = np.concatenate(blocks, 1)
        stride, flat, places = body.shape[1], body.tobytes(), group.tolist()
        ends = range(stride, len(flat) + 1, stride)
        sums = [
            _checksum(users[n], flat[e - stride + 4 : e]) for n, e in zip(places, ends, strict=True)
        ]
        body[:, :4] = np.array(sums, "<u4").view(np.uint8).reshape(-1, 4)
        flat = body.tobytes()
        for index, end in zip(places, ends, strict=True):
            records[index] = flat[end - stride : end]
    return records


def decode(users: Sequence[bytes], found: Sequence[bytes | None]) -> Rows:
    """What `encode` was given, for this and older versions; refuses what is damaged.

    Users without a record have done nothing yet.
    """
    for user, record in zip(users, found, strict=True):
        if record is not None and (reason := fault(user, record)):
            raise RecordError(f"the record of user '{user.decode(errors='replace')}' {reason}")
    return unpack(found)


def unpack(found: Sequence[bytes | None]) -> Rows:
    """The same for records in which `fault` found nothing."""
    records = [NOTHING if record is None else record for record in found]
    heads = np.frombuffer(b"".join([record[: HEADER.itemsize] for record in records]), HEADER)
    count = heads["kept"].astype(np.int64) + heads["waiting"]
    slots = int(count.max(initial=0))
    columns = {name: np.full((len(records), slots), BLANK[name], np.int64) for name in COLUMNS}
    kind = heads["version"].astype(np.int64) << 8 | heads["layout"]
    for group in _groups(kind, count):
        length, first = int(count[group[0]]), heads[group[0]]
        widths = _widths(int(first["version"]), int(first["layout"]))
        raw = np.frombuffer(b"".join(records[i] for i in group.tolist()), np.uint8)
        raw, at = raw.reshape(len(group), -1), HEADER.itemsize
        for name, width in zip(COLUMNS, widths, strict=True):
            if width:
                part = _integers(raw[:, at : at + length * width], width)
                columns[name][group, :length] = _shifted(name, part, -width)
            at += length * width
    seen, last = heads["seen"].astype(np.int64), heads["last"].astype(np.int64)
    there = np.arange(slots) < count[:, None]
    return Rows(
        kept=heads["kept"].astype(np.int64),
        waiting=heads["waiting"].astype(np.int64),
        policy=heads["policy"].astype(np.int64),
        seen=seen,
        last=last,
        item=columns["item"],
        rating=np.where(there, columns["rating"].astype("<u4").view(np.float32), 0),
        time=columns["time"],
        position=np.where(there, seen[:, None] - 1 - columns["age"], -1),
        repeats=np.where(there, columns["repeats"], 0),
        side=columns["side"],
    )


def fault(user: bytes, record: bytes) -> str:
    """Why this cannot be the record of this user; empty where it can."""
    whole = int.from_bytes(record[:4], "little") == _checksum(user, record[4:])
    if whole and len(record) == _length(record[4:10]):
        return ""
    if len(record) < HEADER.itemsize:
        return "is cut off"
    if record[4] not in WIDTHS:
        return f"has version {record[4]}, this dips reads up to {VERSION}: install a newer dips"
    if not whole:
        return "is damaged: restore it from a backup, or forget the user"
    if record[5] >= math.prod(map(len, WIDTHS[record[4]])):
        return f"has layout {record[5]}, which does not exist"
    return "has another length than its header says"


@lru_cache(maxsize=1024)
def _length(start: bytes) -> int:
    """How long a record is whose header goes on so after the checksum; -1 where none can be."""
    if len(start) < 6 or start[0] not in WIDTHS:
        return -1
    version, layout = start[0], start[1]
    if layout >= math.prod(map(len, WIDTHS[version])):
        return -1
    count = int.from_bytes(start[2:4], "little") + int.from_bytes(start[4:6], "little")
    return HEADER.itemsize + count * sum(_widths(version, layout))


def bytes_of(size: int, waiting: int = 0, layout: int = 0) -> int:
    """The length of a record of the current version."""
    return HEADER.itemsize + (size + waiting) * sum(_widths(VERSION, layout))


def _columns(rows: Rows, count: Array) -> list[Array]:
    """The columns as whole numbers, blank beyond the entries."""
    there = np.arange(rows.item.shape[1]) < count[:, None]
    bits = np.ascontiguousarray(rows.rating, dtype="<f4").view("<u4").astype(np.int64)
    age = rows.seen[:, None] - 1 - rows.position
    values = (rows.item, bits, rows.time, age, rows.repeats, rows.side)
    return [np.where(there, v, BLANK[n]) for n, v in zip(COLUMNS, values, strict=True)]


def _layouts(columns: Sequence[Array]) -> Array:
    """The narrowest form of each column that holds its values, as one number per user."""
    layout: Array = np.zeros(len(columns[0]), np.int64)
    for name, values, widths in zip(COLUMNS, columns, WIDTHS[VERSION], strict=True):
        form = np.full(len(values), len(widths) - 1)
        for index in reversed(range(len(widths) - 1)):
            form[_fits(name, values, widths[index])] = index
        layout = layout * len(widths) + form
    return layout


def _fits(name: str, values: Array, width: int) -> Array:
    """[users] whether all values of a column can be written in so many bytes."""
    if width == 0:
        fits: Array = values == BLANK[name]
    elif name == "rating":
        fits = values & 0xFFFF == 0  # the upper half of a float: whole and half stars
    else:
        fits = (values >= 0) & (values < 1 << 8 * width)
    whole: Array = np.all(fits, axis=1)
    return whole


def _shifted(name: str, values: Array, width: int) -> Array:
    """Narrow ratings are the upper half of a float; a negative width turns them back."""
    if name != "rating" or abs(width) != 2:
        return values
    shifted: Array = values >> 16 if width > 0 else values << 16
    return shifted


def _integers(raw: Raw, width: int) -> Array:
    """[users, entries] whole numbers from so many bytes each; only 8 bytes have a sign."""
    if width in PLAIN:
        return np.ascontiguousarray(raw).view(PLAIN[width]).astype(np.int64)
    low, middle, high = (raw[:, place::3].astype(np.int64) for place in range(3))
    return low | middle << 8 | high << 16


def _bytes(numbers: Array, width: int) -> Raw:
    """[users, bytes] the other way round."""
    raw: Raw = np.ascontiguousarray(numbers, PLAIN.get(width, "<u4")).view(np.uint8)
    if width in PLAIN:
        return raw
    return raw.reshape(*numbers.shape, 4)[:, :, :width].reshape(len(numbers), -1)


@cache
def _widths(version: int, layout: int) -> tuple[int, ...]:
    """Bytes per entry of each column."""
    widths = []
    for forms in reversed(WIDTHS[version]):
        layout, form = divmod(layout, len(forms))
        widths.append(forms[form])
    return tuple(reversed(widths))


def _groups(kind: Array, count: Array) -> Iterator[Array]:
    """Places of equal kind and count, which are read and written together."""
    key = kind.astype(np.int64) << 20 | count
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    yield from np.split(order, starts[1:]) if len(order) else ()


def _checksum(user: bytes, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(user))
