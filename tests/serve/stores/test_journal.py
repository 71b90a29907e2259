"""The newest rows of a table: nobody can tell where a row is, and few are held in memory."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dips.serve import journal
from dips.serve.stores.journal import Journal, JournalError
from dips.serve.keeper import open_keeper
from dips.serve.maintenance import backup, check, restore
from dips.serve.stores.sqlite import SqliteStore
from dips.serve.stores.base import StoreError, Table, open_store
from tests.serve.models import make_model

SPAN, USERS, MOST = 6, 40, 5
keys = st.integers(0, USERS - 1).map(lambda n: b"user %d" % n)
values = st.one_of(st.none(), st.binary(max_size=4))
rows = st.dictionaries(keys, values, max_size=MOST)
many = st.dictionaries(keys, values, min_size=SPAN, max_size=2 * SPAN)
steps = st.lists(
    st.one_of(rows, many, st.sampled_from(["fail", "open", "compact", "look"])),
    min_size=1,
    max_size=40,
)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(journal, "SPAN", SPAN)


def entries(store):
    return store.connection.execute("SELECT place FROM journal").fetchall()


def no_commit(action, what, *_):
    """All rows are written, and then it ends badly."""
    return sqlite3.SQLITE_DENY if (action, what) == (22, "COMMIT") else sqlite3.SQLITE_OK


def held(store):
    """By looking up and by walking, which must agree."""
    names = [b"user %d" % n for n in range(USERS)]
    found = zip(names, store.get(Table.USERS, names), strict=True)
    walked = dict(store.scan(Table.USERS))
    assert walked == {key: value for key, value in found if value is not None}
    return walked


@given(steps=steps)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
def test_nobody_can_tell_where_a_row_is(steps, tmp_path_factory):
    """Nor can readers who look now and then; after failures and restarts, too."""
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
        elif step == "look":
            assert held(reader) == model
        else:
            store.commit({Table.USERS: step})
            model = {k: v for k, v in (model | step).items() if v is not None}
        assert held(store) == model
        assert store.stats()["journal"] <= 2 * (SPAN + MOST)
    assert held(reader) == model
    store.compact()
    table = dict(store.connection.execute("SELECT key, value FROM users"))
    assert table == model
    store.close()
    reader.close()


def test_what_comes_often_is_moved_once_a_round(tmp_path):
    """A row for each of so many commits; entries are removed when all they hold has been moved."""
    store = SqliteStore(tmp_path / "s.db")
    moved = []
    write = store._write
    store._journal._put = lambda rows: (moved.extend(rows), write(Table.USERS, rows))
    for n in range(60):
        store.commit({Table.USERS: {b"often": b"%d" % n, b"once %d" % n: b""}})
        assert len(entries(store)) <= 2 * SPAN
        assert store.stats()["journal"] <= SPAN + 4
    assert moved.count(b"often") < 20
    assert len(moved) - moved.count(b"often") > 40
    assert store.get(Table.USERS, [b"often"]) == [b"59"]
    store.close()


def test_a_large_commit_goes_straight_to_the_table(tmp_path):
    """Memory and entries have a bound whatever the batch; what waited goes with it."""
    store, reader = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db", readonly=True)
    store.commit({Table.USERS: {b"0": b"old", b"1": b"old", b"x": b"waits"}})
    assert reader.stats() == {"journal": 3}
    large = {b"%d" % n: b"" for n in range(1, 100)} | {b"0": None}
    store.commit({Table.USERS: large})
    assert store.stats() == {"journal": 0}
    wanted = {b"x": b"waits"} | {b"%d" % n: b"" for n in range(1, 100)}
    assert dict(store.connection.execute("SELECT key, value FROM users")) == wanted
    assert sum(len(rows) for (rows,) in store.connection.execute("SELECT rows FROM journal")) < 9
    assert held_by(reader) == wanted
    store.close()
    reader.close()


def test_every_flipped_bit_of_an_entry_is_told():
    """Or it is in a value, which is told by the record itself: the others can be read."""
    rows = {b"alice": b"record", b"bob": None, b"": b""}
    entry = journal._packed(7, rows)
    assert journal._unpacked(7, entry) == rows
    inside = range(8 * entry.index(b"record"), 8 * entry.index(b"bob"))
    for bit in range(8 * len(entry)):
        bad = bytearray(entry)
        bad[bit // 8] ^= 1 << bit % 8
        if bit in inside:
            found = journal._unpacked(7, bytes(bad))
            assert found.pop(b"alice") != b"record"
            assert found == {b"bob": None, b"": b""}
        else:
            with pytest.raises(JournalError, match="is damaged"):
                journal._unpacked(7, bytes(bad))
    for other in (8, entry), (7, entry[:-1]), (7, entry + b"x"), (7, entry[:6]), (7, b""):
        with pytest.raises(JournalError, match="is damaged"):
            journal._unpacked(*other)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE journal SET rows = substr(rows, 1, 12) WHERE place = 1",
        "UPDATE journal SET rows = 'text' WHERE place = 2",
        "UPDATE journal SET rows = 7 WHERE place = 0",
        "DELETE FROM journal WHERE place = 1",
    ],
)
def test_a_damaged_entry_is_told_by_all_who_open(damage, tmp_path):
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    for many in (5, 1, 1):
        store.commit({Table.USERS: {b"user %d" % n: b"record" for n in range(many)}})
    assert entries(store) == [(0,), (1,), (2,)]
    store.connection.execute(damage)
    store.close()
    reader = SqliteStore(path, readonly=True)
    told = "an entry of the journal is damaged: restore a backup"
    assert told in check(reader)[0]
    with pytest.raises(StoreError, match=told):
        reader.get(Table.USERS, [b"alice"])
    reader.close()
    with pytest.raises(StoreError, match=told):
        SqliteStore(path)


def test_memory_is_read_anew_where_a_signal_comes_between(tmp_path, monkeypatch):
    """It has been committed, and whoever did it was interrupted before memory said so."""
    store = SqliteStore(tmp_path / "s.db")
    store.commit({Table.USERS: {b"alice": b"1", b"bob": b"1"}})
    write = store._write_all

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_all", lambda: (write(), interrupted)[1])
        with pytest.raises(KeyboardInterrupt):
            store.commit({Table.USERS: {b"alice": b"2"}})
    assert held_by(store) == {b"alice": b"2", b"bob": b"1"}
    store.commit({Table.USERS: {b"bob": b"3"}})
    assert held_by(store) == {b"alice": b"2", b"bob": b"3"}
    store.close()


def test_stores_of_the_first_version_are_read_and_carried_on(tmp_path):
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    store.commit({Table.USERS: {b"alice": b"1"}})
    store.compact()
    store.connection.executescript("DROP TABLE journal; PRAGMA user_version = 1;")
    store.close()
    reader = SqliteStore(path, readonly=True)
    assert held_by(reader) == {b"alice": b"1"}
    store = SqliteStore(path)
    store.commit({Table.USERS: {b"alice": b"2", b"bob": b"3"}})
    assert held_by(store) == held_by(reader) == {b"alice": b"2", b"bob": b"3"}
    store.connection.execute("PRAGMA user_version = 3")
    store.close()
    reader.close()
    with pytest.raises(StoreError, match="is not a store of this version of dips"):
        SqliteStore(path)


def held_by(store):
    return dict(store.scan(Table.USERS))


def test_a_reader_sees_one_moment(tmp_path):
    """Rows that move on meanwhile are neither missed nor seen twice."""
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


def test_a_backup_holds_what_is_in_the_journal(tmp_path):
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


def test_memory_forgets_who_is_forgotten(tmp_path):
    with open_keeper(make_model("last", 3), f"sqlite:{tmp_path}/s.db") as keeper:
        keeper.observe("alice", "1", 3, seq=1)
        record = keeper._store._journal.newest[b"alice"]
        assert record is not None
        assert keeper.stats()["journal"] == 1
        keeper.forget("alice")
        assert record not in keeper._store._journal.newest.values()
        keeper.compact()
        assert keeper.stats()["journal"] == 0
        assert b"alice" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_nothing_is_adopted_before_it_is_durable():
    """Until the transaction has ended well, memory says what was there before."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(journal.CREATE)
    held = Journal(connection, lambda rows: None)
    adopt = held.append({b"a": b"1"})
    assert held.newest == {}
    adopt()
    held.append({b"a": b"2"})
    assert held.newest == {b"a": b"1"}
