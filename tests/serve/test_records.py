"""Records: encoding and decoding are inverse, and damage is detected."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dips.serve.records import RecordError, UserRecords, decode, encode, record_length


def records_of(users: list[dict]) -> UserRecords:
    """Return records from plain lists: an entry is (item, rating, time, age, repeats, side)."""
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
    return UserRecords(
        kept=count - waiting,
        waiting=waiting,
        policy=np.array([user["policy"] for user in users], np.int64),
        seen=seen,
        next_seq=np.array([user["next_seq"] for user in users], np.int64),
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
        "next_seq": st.integers(0, 2**63 - 1),
        "entries": st.lists(entry, max_size=9),
    })  # fmt: skip


@given(st.lists(states(st.one_of(ordinary, anything)), min_size=1, max_size=6))
def test_round_trip(users):
    decoded, names = records_of(users), [f"user {n}".encode() for n in range(len(users))]
    again = decode(names, encode(names, decoded))
    for field, before, after in zip(UserRecords._fields, decoded, again, strict=True):
        assert np.array_equal(before, after), field


@given(st.lists(states(ordinary), min_size=2, max_size=6))
def test_a_record_does_not_depend_on_other_records(users):
    names = [f"user {n}".encode() for n in range(len(users))]
    together = encode(names, records_of(users))
    alone = [encode([name], records_of([user]))[0] for name, user in zip(names, users, strict=True)]
    assert together == alone


@pytest.mark.parametrize("repeats", [1, 200])
def test_eight_entries_take_at_most_128_bytes(repeats):
    """For the largest ordinary values: 16 million items, 32-bit times, ages of 65,535 events."""
    rating = 4.5 if repeats > 1 else 4.3  # ratings with many digits, where nothing repeats
    entry = (2**24 - 1, rating, 2**32 - 1, 2**16 - 1, repeats, 0)
    user = {"seen": 2**32 - 1, "waiting": 0, "policy": 65535, "next_seq": 2**63 - 1}
    (record,) = encode([b"u"], records_of([{**user, "entries": [entry] * 8}]))
    assert len(record) <= 128
    assert record_length(8) <= 128


def one() -> bytes:
    entries = [(5, 4.0, 1000 + n, n, 1, 0) for n in range(4)]
    user = {"seen": 20, "waiting": 0, "policy": 1, "next_seq": 7, "entries": entries}
    return encode([b"alice"], records_of([user]))[0]


def test_every_flipped_bit_is_detected():
    record = one()
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError, match="the record of user 'alice' "):
            decode([b"alice"], [bytes(flipped)])


def test_a_truncated_record_and_another_user_s_record_are_detected():
    for length in range(len(one())):
        with pytest.raises(RecordError, match=r"cut off|damaged"):
            decode([b"alice"], [one()[:length]])
    with pytest.raises(RecordError, match="'bob' is damaged: restore it from a backup"):
        decode([b"bob"], [one()])


def test_an_unknown_version_is_reported():
    body = bytes([9]) + one()[5:]
    record = zlib.crc32(body, zlib.crc32(b"alice")).to_bytes(4, "little") + body
    with pytest.raises(RecordError, match="has version 9, this dips reads version 2: install"):
        decode([b"alice"], [record])


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_decoded_or_refused(content, valid_checksum):
    """Also bytes with a valid checksum raise no other error."""
    record = zlib.crc32(content, zlib.crc32(b"u")).to_bytes(4, "little") + content
    try:
        records = decode([b"u"], [record if valid_checksum else content])
    except RecordError:
        return
    assert records.item.shape[1] == records.kept[0] + records.waiting[0]
