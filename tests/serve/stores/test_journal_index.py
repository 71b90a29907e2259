"""The index of a reader finds the rows of the journal, and detects damage."""

from __future__ import annotations

import sqlite3
import zlib

import pytest

from dips.serve.stores import commit_numbers, journal_index
from dips.serve.stores.journal import CREATE, JournalError, _pack
from dips.serve.stores.journal_index import JournalIndex

ENTRIES = {
    4: {b"alice": b"old", b"bob": b"1", b"": b"empty"},
    5: {b"carl": None, b"bob": None},
    6: {b"alice": b"new"},
}


def connect(entries) -> sqlite3.Connection:
    connection = create(":memory:")
    for number, entry in entries.items():
        connection.execute("INSERT INTO journal VALUES (?, ?)", (number, entry))
    set_span(connection, min(entries, default=0), max(entries, default=-1) + 1)
    return connection


def create(path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(CREATE + commit_numbers.CREATE)
    return connection


def set_span(connection, first, following):
    """Record which entries there are, as every commit does."""
    connection.execute("UPDATE state SET journal_first = ?, journal_next = ?", (first, following))


def packed():
    return {number: _pack(number, rows) for number, rows in ENTRIES.items()}


NEWEST = {b"alice": b"new", b"bob": None, b"carl": None, b"": b"empty"}


def test_the_newest_row_of_each_key_is_found():
    index = JournalIndex(connect(packed()))
    assert index.find([*NEWEST, b"nobody", b"alice"]) == NEWEST
    assert index.find([]) == {}
    assert JournalIndex(connect({})).find([b"alice"]) == {}


def test_keys_with_the_same_hash_are_told_apart():
    """Four bytes of hash are equal for some pairs of users."""
    first, second = b"plumless", b"buckeroo"  # a known collision of CRC-32
    assert zlib.crc32(first) == zlib.crc32(second)
    rows = {1: _pack(1, {first: b"1", b"x": b""}), 2: _pack(2, {second: b"2"})}
    index = JournalIndex(connect(rows))
    assert index.find([first]) == {first: b"1"}
    assert index.find([first, second]) == {first: b"1", second: b"2"}
    assert JournalIndex(connect({2: rows[2]})).find([first]) == {}


def test_every_flipped_bit_of_an_entry_is_detected():
    """Except in values, which have checksums of their own."""
    entry = packed()[4]
    for bit in range(8 * len(entry)):
        bad = bytearray(entry)
        bad[bit // 8] ^= 1 << bit % 8
        index = JournalIndex(connect({4: bytes(bad)}))
        try:
            found = index.find([b"alice", b"bob", b""])
        except JournalError:
            continue
        if bit < 32:  # the sum of head and keys, which only the whole journal checks
            continue
        assert set(found) == {b"alice", b"bob", b""}
        assert found != ENTRIES[4]  # a value


@pytest.mark.parametrize("entry", [b"", b"x" * 11, _pack(4, {b"a": b"1"}), "text", 7, None])
def test_an_entry_that_is_none_is_damaged(entry):
    connection = connect({})
    connection.execute("DROP TABLE journal")
    connection.execute("CREATE TABLE journal (number INTEGER PRIMARY KEY, rows)")
    connection.execute("INSERT INTO journal VALUES (5, ?)", (entry,))
    set_span(connection, 5, 6)
    with pytest.raises(JournalError, match="an entry of the journal is damaged"):
        JournalIndex(connection).find([b"a"])


@pytest.mark.parametrize("number", ENTRIES)
def test_a_missing_entry_is_damage(number):
    connection = connect(packed())
    connection.execute("DELETE FROM journal WHERE number = ?", (number,))
    with pytest.raises(JournalError, match="an entry of the journal is damaged"):
        JournalIndex(connection).find([b"alice"])


def test_only_the_heads_of_new_entries_are_read(tmp_path, monkeypatch):
    """Between two commits nothing is read again; deleted entries are forgotten."""
    path, read = tmp_path / "s.db", []
    writer = create(path)
    set_span(writer, 4, 4)
    head = journal_index.read_head
    monkeypatch.setattr(
        journal_index, "read_head", lambda number, *rest: read.append(number) or head(number, *rest)
    )
    index = JournalIndex(sqlite3.connect(path, isolation_level=None))
    for number, entry in packed().items():
        writer.execute("INSERT INTO journal VALUES (?, ?)", (number, entry))
        set_span(writer, 4, number + 1)
        for _ in range(2):
            assert b"alice" in index.find([b"alice"])
    assert read == [4, 5, 6]
    writer.execute("DELETE FROM journal WHERE number < 6")
    set_span(writer, 6, 7)
    assert index.find(list(NEWEST)) == {b"alice": b"new"}
    writer.execute("DELETE FROM journal")
    writer.execute("INSERT INTO journal VALUES (9, ?)", (_pack(9, {b"dora": b"1"}),))
    set_span(writer, 9, 10)
    assert index.find([b"alice", b"dora"]) == {b"dora": b"1"}
    assert read == [4, 5, 6, 9]
