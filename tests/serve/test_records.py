"""Records: what goes in comes out, damage is noticed, and nothing else is believed."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dips.serve import records
from dips.serve.records import RecordError, Rows, bytes_of, decode, encode


def rows_of(users: list[dict]) -> Rows:
    """Rows from plain lists: each entry is (item, rating, time, age, repeats, side)."""
    slots = max((len(user["entries"]) for user in users), default=0)
    table = np.zeros((6, len(users), slots))
    fields = [column.astype(np.float32 if i == 1 else np.int64) for i, column in enumerate(table)]
    for row, user in enumerate(users):
        for slot, entry in enumerate(user["entries"]):
            for field, value in zip(fields, entry, strict=True):
                field[row, slot] = value
    item, rating, time, age, repeats, side = fields
    seen = np.array([user["seen"] for user in users], np.int64)
    count = np.array([len(user["entries"]) for user in users], np.int64)
    there = np.arange(slots) < count[:, None]
    waiting = np.minimum(count, [user["waiting"] for user in users])
    return Rows(
        kept=count - waiting,
        waiting=waiting,
        policy=np.array([user["policy"] for user in users], np.int64),
        seen=seen,
        last=np.array([user["last"] for user in users], np.int64),
        item=item,
        rating=rating,
        time=time,
        position=np.where(there, seen[:, None] - 1 - age, -1),
        repeats=repeats,
        side=side,
    )


ordinary = st.tuples(
    st.integers(0, 2**24 - 1),
    st.sampled_from([1.0, 0.5, 3.5, 5.0]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(1, 255),
    st.just(0),
)
anything = st.tuples(
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 2),
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**62),
)


def states(entry: st.SearchStrategy) -> st.SearchStrategy:
    return st.fixed_dictionaries({
        "seen": st.integers(0, 2**32 - 1),
        "waiting": st.integers(0, 3),
        "policy": st.integers(0, 2**16 - 1),
        "last": st.integers(0, 2**63 - 1),
        "entries": st.lists(entry, max_size=9),
    })  # fmt: skip


@given(st.lists(states(st.one_of(ordinary, anything)), min_size=1, max_size=6))
def test_round_trip(users):
    rows, names = rows_of(users), [f"user {n}".encode() for n in range(len(users))]
    again = decode(names, encode(names, rows))
    for field, before, after in zip(Rows._fields, rows, again, strict=True):
        assert np.array_equal(before, after), field


@given(st.lists(states(ordinary), min_size=2, max_size=6))
def test_a_record_does_not_depend_on_its_neighbours(users):
    names = [f"user {n}".encode() for n in range(len(users))]
    together = encode(names, rows_of(users))
    alone = [encode([name], rows_of([user]))[0] for name, user in zip(names, users, strict=True)]
    assert together == alone


@pytest.mark.parametrize("repeats", [1, 200])
def test_eight_entries_take_at_most_128_bytes(repeats):
    """The widest ordinary values: 16 million items, stars, unsigned 32-bit times, 65,535 events."""
    rating = 4.5 if repeats > 1 else 4.3  # ratings with many digits, where nothing repeats
    entry = (2**24 - 1, rating, 2**32 - 1, 2**16 - 1, repeats, 0)
    user = {"seen": 2**32 - 1, "waiting": 0, "policy": 65535, "last": 2**63 - 1}
    (record,) = encode([b"u"], rows_of([{**user, "entries": [entry] * 8}]))
    assert len(record) <= 128
    assert bytes_of(8) <= 128


@pytest.mark.parametrize("version", [1])
def test_older_versions_are_read(version):
    """Version 1 had no narrow forms; written here by hand."""
    head = np.zeros(1, records.HEADER)
    head["version"], head["kept"], head["seen"], head["last"], head["policy"] = 1, 1, 9, 4, 2
    body = head.tobytes()[4:] + np.array([7], "<u4").tobytes() + np.array([3.5], "<f4").tobytes()
    body += np.array([100], "<i8").tobytes() + np.array([2, 1], "<u4").tobytes() + bytes(8)
    record = zlib.crc32(body, zlib.crc32(b"alice")).to_bytes(4, "little") + body
    rows = decode([b"alice"], [record])
    assert (rows.item[0, 0], rows.rating[0, 0], rows.time[0, 0]) == (7, 3.5, 100)
    assert (rows.position[0, 0], rows.repeats[0, 0], rows.seen[0], rows.last[0]) == (6, 1, 9, 4)


def one() -> bytes:
    entries = [(5, 4.0, 1000 + n, n, 1, 0) for n in range(4)]
    user = {"seen": 20, "waiting": 0, "policy": 1, "last": 7, "entries": entries}
    return encode([b"alice"], rows_of([user]))[0]


def test_every_flipped_bit_is_noticed():
    record = one()
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError, match="the record of user 'alice' "):
            decode([b"alice"], [bytes(flipped)])


def test_a_cut_record_and_a_stranger_s_record_are_noticed():
    for length in range(len(one())):
        with pytest.raises(RecordError, match=r"cut off|damaged"):
            decode([b"alice"], [one()[:length]])
    with pytest.raises(RecordError, match="'bob' is damaged: restore it from a backup"):
        decode([b"bob"], [one()])


def test_a_newer_version_says_so():
    body = bytes([9]) + one()[5:]
    record = zlib.crc32(body, zlib.crc32(b"alice")).to_bytes(4, "little") + body
    with pytest.raises(RecordError, match="has version 9, this dips reads up to 2: install"):
        decode([b"alice"], [record])


@given(st.binary(max_size=200), st.booleans())
def test_the_decoder_survives_anything(content, sealed):
    """Bytes of any kind, also with a true checksum, are read or refused; nothing else happens."""
    record = zlib.crc32(content, zlib.crc32(b"u")).to_bytes(4, "little") + content
    try:
        rows = decode([b"u"], [record if sealed else content])
    except RecordError:
        return
    assert rows.item.shape[1] == rows.kept[0] + rows.waiting[0]
