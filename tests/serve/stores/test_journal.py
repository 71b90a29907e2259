"""Journal: reads do not depend on where a row is, and few rows are held in memory."""

from __future__ import annotations

import re
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dips.serve.keeper import open_keeper
from dips.serve.maintenance import backup, check, restore
from dips.serve.stores import commit_numbers, journal
from dips.serve.stores.base import StoreError, Table
from dips.serve.stores.journal import Journal, JournalError
from dips.serve.stores.registry import open_store
from dips.serve.stores.sqlite import SqliteStore
from tests.serve.models import make_model

CHECKPOINT_ROWS, USERS, MOST = 6, 40, 5
keys = st.integers(0, USERS - 1).map(lambda n: b"user %d" % n)
values = st.one_of(st.none(), st.binary(max_size=4))
rows = st.dictionaries(keys, values, max_size=MOST)
many = st.dictionaries(keys, values, min_size=CHECKPOINT_ROWS, max_size=2 * CHECKPOINT_ROWS)
steps = st.lists(
    st.one_of(rows, many, st.sampled_from(["fail", "open", "compact", "read"])),
    min_size=1,
    max_size=40,
)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(journal, "CHECKPOINT_ROWS", CHECKPOINT_ROWS)


def entries(store):
    return store.connection.execute("SELECT number FROM journal").fetchall()


def no_commit(action, what, *_):
    """Fail at COMMIT, after all rows were written."""
    return sqlite3.SQLITE_DENY if (action, what) == (22, "COMMIT") else sqlite3.SQLITE_OK


def held(store):
    """Return all rows, by `get` and by `scan`, which must agree."""
    names = [b"user %d" % n for n in range(USERS)]
    found = zip(names, store.get(Table.USERS, names), strict=True)
    scanned = dict(store.scan(Table.USERS))
    assert scanned == {key: value for key, value in found if value is not None}
    return scanned


@given(steps=steps)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
def test_reads_do_not_depend_on_checkpoints(steps, tmp_path_factory):
    """Of the writer and of a reader; also after failures and restarts."""
    path = tmp_path_factory.mktemp("store") / "s.db"
    store, model = SqliteStore(path), {}
    reader = SqliteStore(path, readonly=True)
    for step in steps:
        if step == "fail":
            store.connection.set_authorizer(no_commit)
            with pytest.raises(StoreError, match="cannot be written"):
                store.commit({Table.USERS: {b"user 0": b"x", b"user 1": None}})
            store.connection.set_authorizer(None)
        elif step == "open":
            store.close()
            store = SqliteStore(path)
        elif step == "compact":
            store.compact()
            assert store.stats() == {"journal": 0}
        elif step == "read":
            assert held(reader) == model
        else:
            store.commit({Table.USERS: step})
            model = {k: v for k, v in (model | step).items() if v is not None}
        assert held(store) == model
        assert store.stats()["journal"] <= 2 * (CHECKPOINT_ROWS + MOST)
    assert held(reader) == model
    store.compact()
    table = dict(store.connection.execute("SELECT key, value FROM users"))
    assert table == model
    store.close()
    reader.close()


def test_a_row_is_checkpointed_once_a_round(tmp_path):
    """Entries are deleted when all their rows are in the table."""
    store = SqliteStore(tmp_path / "s.db")
    moved = []
    write = store._write
    store._journal._write_table = lambda rows: (moved.extend(rows), write(Table.USERS, rows))
    for n in range(60):
        store.commit({Table.USERS: {b"often": b"%d" % n, b"once %d" % n: b""}})
        assert len(entries(store)) <= 2 * CHECKPOINT_ROWS
        assert store.stats()["journal"] <= CHECKPOINT_ROWS + 4
    assert moved.count(b"often") < 20
    assert len(moved) - moved.count(b"often") > 40
    assert store.get(Table.USERS, [b"often"]) == [b"59"]
    store.close()


def test_a_large_commit_bypasses_the_journal(tmp_path):
    """So memory and entries are bounded; rows in the journal are checkpointed with it."""
    store, reader = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db", readonly=True)
    store.commit({Table.USERS: {b"0": b"old", b"1": b"old", b"x": b"old"}})
    assert reader.stats() == {"journal": 3}
    large = {b"%d" % n: b"" for n in range(1, 100)} | {b"0": None}
    store.commit({Table.USERS: large})
    assert store.stats() == {"journal": 0}
    expected = {b"x": b"old"} | {b"%d" % n: b"" for n in range(1, 100)}
    assert dict(store.connection.execute("SELECT key, value FROM users")) == expected
    assert sum(len(rows) for (rows,) in store.connection.execute("SELECT rows FROM journal")) < 13
    assert held_by(reader) == expected
    store.close()
    reader.close()


def test_every_flipped_bit_of_an_entry_is_detected():
    """Except in a value: the record itself has a checksum, and the other rows can be read."""
    rows = {b"alice": b"record", b"bob": None, b"": b""}
    entry = journal._pack(7, rows)
    assert journal._unpack(7, entry) == rows
    inside = range(8 * entry.index(b"record"), 8 * entry.index(b"bob"))
    for bit in range(8 * len(entry)):
        bad = bytearray(entry)
        bad[bit // 8] ^= 1 << bit % 8
        if bit in inside:
            found = journal._unpack(7, bytes(bad))
            assert found.pop(b"alice") != b"record"
            assert found == {b"bob": None, b"": b""}
        else:
            with pytest.raises(JournalError, match="is damaged"):
                journal._unpack(7, bytes(bad))
    for other in (8, entry), (7, entry[:-1]), (7, entry + b"x"), (7, entry[:6]), (7, b""):
        with pytest.raises(JournalError, match="is damaged"):
            journal._unpack(*other)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE journal SET rows = substr(rows, 1, 12) WHERE number = 1",
        "UPDATE journal SET rows = 'text' WHERE number = 2",
        "UPDATE journal SET rows = 7 WHERE number = 0",
        "DELETE FROM journal WHERE number = 1",
        "DELETE FROM journal WHERE number = 0",
        "DELETE FROM journal WHERE number = 2",
        "DELETE FROM journal",
    ],
)
def test_a_damaged_entry_is_reported_to_reader_and_writer(damage, tmp_path):
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    for many in (5, 1, 1):
        store.commit({Table.USERS: {b"user %d" % n: b"record" for n in range(many)}})
    assert entries(store) == [(0,), (1,), (2,)]
    store.connection.execute(damage)
    store.close()
    reader = SqliteStore(path, readonly=True)
    message = r"of the journal (is damaged|are missing): restore a backup"
    assert re.search(message, check(reader)[0])
    with pytest.raises(StoreError, match=message):
        reader.get(Table.USERS, [b"alice"])
    reader.close()
    with pytest.raises(StoreError, match=message):
        SqliteStore(path)


def test_after_a_signal_behind_the_commit_the_store_is_opened_again(tmp_path, monkeypatch):
    """The transaction was committed, but memory was not updated: nothing is read from it."""
    store = SqliteStore(tmp_path / "s.db")
    store.commit({Table.USERS: {b"alice": b"1", b"bob": b"1"}})
    write = store._write_staged

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_staged", lambda: (write(), interrupted)[1])
        with pytest.raises(KeyboardInterrupt):
            store.commit({Table.USERS: {b"alice": b"2"}})
    for use in (lambda: held_by(store), lambda: store.commit({Table.USERS: {b"bob": b"3"}})):
        with pytest.raises(StoreError, match=r"a commit was interrupted.*: open the store again"):
            use()
    store.close()
    store = SqliteStore(tmp_path / "s.db")
    assert held_by(store) == {b"alice": b"2", b"bob": b"1"}
    store.commit({Table.USERS: {b"bob": b"3"}})
    assert held_by(store) == {b"alice": b"2", b"bob": b"3"}
    store.close()


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (1, "was written by an older dips"),
        (3, "was written by an older dips"),
        (5, "is not a store"),
    ],
)
@pytest.mark.parametrize("readonly", [True, False])
def test_other_versions_of_the_format_are_refused(version, message, readonly, tmp_path):
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    store.connection.execute(f"PRAGMA user_version = {version}")
    store.close()
    with pytest.raises(StoreError, match=message):
        SqliteStore(path, readonly=readonly)


def held_by(store):
    return dict(store.scan(Table.USERS))


def test_a_snapshot_sees_one_commit(tmp_path):
    """UserRecords that move on meanwhile are neither missed nor seen twice."""
    path = tmp_path / "s.db"
    writer, reader = SqliteStore(path), SqliteStore(path, readonly=True)
    first = {b"user %d" % n: b"1" for n in range(8)}
    writer.commit({Table.USERS: first})
    with reader.snapshot():
        assert held_by(reader) == first
        for n in range(20):
            writer.commit({Table.USERS: {b"user %d" % (n % 8): b"2"}})
        assert held_by(reader) == first
        assert reader.get(Table.USERS, [b"user 0"]) == [b"1"]
    assert held_by(reader) == dict.fromkeys(first, b"2")
    writer.close()
    reader.close()


def test_a_backup_holds_the_rows_of_the_journal(tmp_path):
    store = SqliteStore(tmp_path / "s.db")
    for n in range(9):
        store.commit({Table.USERS: {b"user %d" % (n % 4): b"%d" % n, b"%d" % n: None}})
    backup(store, tmp_path / "b")
    again = open_store("memory:")
    restore(tmp_path / "b", again)
    assert (
        held_by(again) == held_by(store) == {b"user %d" % (n % 4): b"%d" % n for n in range(5, 9)}
    )
    store.close()


def test_an_erased_user_is_not_in_memory(tmp_path):
    with open_keeper(make_model("last", 3), f"sqlite:{tmp_path}/s.db") as keeper:
        keeper.observe("alice", "1", 3, seq=1)
        record = keeper._store._journal.rows[b"alice"]
        assert record is not None
        assert keeper.stats()["journal"] == 1
        keeper.forget("alice")
        assert record not in keeper._store._journal.rows.values()
        keeper.compact()
        assert keeper.stats()["journal"] == 0
        assert b"alice" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_memory_is_not_updated_before_the_transaction_is_committed():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(commit_numbers.CREATE + journal.CREATE)
    found = Journal(connection, lambda rows: None)
    update_memory = found.append({b"a": b"1"})
    assert found.rows == {}
    update_memory()
    found.append({b"a": b"2"})
    assert found.rows == {b"a": b"1"}
