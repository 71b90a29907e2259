"""Commits that are missing are reported, and a commit is acknowledged only when it is durable."""

from __future__ import annotations

import errno
import shutil
import sqlite3

import pytest

from dips.serve.keeper import open_keeper
from dips.serve.maintenance import check
from dips.serve.stores import commit_mark, sqlite
from dips.serve.stores.base import StoreError, Table
from dips.serve.stores.sqlite import SqliteStore
from tests.serve.fold import fold, state_of
from tests.serve.models import make_model

USERS = [f"user {n}" for n in range(7)]
LOG = [
    {"user": USERS[n % 7], "item": str(n % 12), "rating": 3.0, "time": n, "seq": n}
    for n in range(40)
]


@pytest.fixture
def trained():
    return make_model("frequent", 3)


@pytest.fixture
def crashed(tmp_path, trained):
    """Folder of a store as a crash leaves it. Its log holds all but the first commits."""
    keeper = open_keeper(trained, f"sqlite:{tmp_path}/live/s.db", batch=5)
    keeper.observe_many(LOG[:10])
    keeper._store.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    keeper.observe_many(LOG[10:])
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    keeper.close()
    return tmp_path / "crashed"


def without(folder, *suffixes):
    """Remove files beside the database; return its path."""
    for suffix in suffixes:
        (folder / f"s.db{suffix}").unlink()
    return folder / "s.db"


def test_a_removed_log_is_reported_and_the_events_can_be_sent_again(crashed, trained):
    path = without(crashed, "-wal", "-shm")
    with pytest.raises(StoreError) as told:
        SqliteStore(path)
    first, last = 6, 11  # before: three to open the store and to register the model, two batches
    assert f"lacks commits {first} to {last}, which were acknowledged" in str(told.value)
    assert f"send the events since commit {first - 1} (20" in str(told.value)
    reader = SqliteStore(path, readonly=True)
    assert check(reader) == [str(told.value)]
    reader.close()
    SqliteStore(path, accept_missing=True).close()
    with open_keeper(trained, f"sqlite:{path}") as keeper:
        assert state_of(keeper, USERS) == fold(LOG[:10], "frequent", 3)
        keeper.observe_many(LOG)
        assert state_of(keeper, USERS) == fold(LOG, "frequent", 3)
        assert check(keeper._store) == []


@pytest.mark.parametrize("suffixes", [("-wal", "-shm", ".commits"), (".commits",)])
def test_a_store_without_its_mark_was_closed_or_is_reported(crashed, trained, suffixes):
    """Also the copy of a database file alone, made while it was open."""
    path = without(crashed, *suffixes)
    message = r"was not closed, and s\.db\.commits is not beside it: commits after \d+ may be miss"
    with pytest.raises(StoreError, match=message):
        SqliteStore(path)
    reader = SqliteStore(path, readonly=True)
    assert "was not closed" in check(reader)[0]
    reader.close()
    SqliteStore(path, accept_missing=True).close()
    SqliteStore(path).close()


def test_a_copy_of_the_database_file_of_an_open_store_is_reported(tmp_path):
    """As soon as it is open: the file itself says so, not its log."""
    store = SqliteStore(tmp_path / "s.db")
    store.commit({Table.USERS: {b"a": b"1"}})
    shutil.copy(tmp_path / "s.db", tmp_path / "copy.db")
    store.close()
    with pytest.raises(StoreError, match=r"was not closed, and copy\.db\.commits is not beside it"):
        SqliteStore(tmp_path / "copy.db")


def test_an_empty_mark_is_no_mark(tmp_path):
    """A process may be killed while it creates the file, before it opens the store."""
    SqliteStore(tmp_path / "s.db").close()
    (tmp_path / "s.db.commits").touch()
    SqliteStore(tmp_path / "s.db").close()


def test_a_closed_store_is_one_file_that_can_be_moved(tmp_path):
    store = SqliteStore(tmp_path / "a" / "s.db")
    store.commit({Table.USERS: {b"a": b"1"}})
    store.close()
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["s.db"]
    (tmp_path / "a" / "s.db").rename(tmp_path / "t.db")
    again = SqliteStore(tmp_path / "t.db")
    assert again.get(Table.USERS, [b"a"]) == [b"1"]
    assert again.verify() == []
    again.close()


def test_a_store_that_is_closed_while_it_is_read_keeps_its_mark(tmp_path):
    """Its last commits are in the log only, until the reader has ended its snapshot."""
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    reader = SqliteStore(path, readonly=True)
    with reader.snapshot():
        assert reader.get(Table.USERS, [b"a"]) == [None]
        store.commit({Table.USERS: {b"a": b"1"}})
        store.close()
        assert (tmp_path / "s.db.commits").exists()
        other = SqliteStore(path, readonly=True)
        assert other.verify() == []
        other.close()
        copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
        store = SqliteStore(path)  # all is durable: it need not wait for the reader
        assert store.get(Table.USERS, [b"a"]) == [b"1"]
        store.close()
    reader.close()
    with pytest.raises(StoreError, match="lacks commits"):
        SqliteStore(without(copy, "-wal", "-shm"))


def test_the_mark_of_another_store_is_reported(crashed, tmp_path):
    SqliteStore(tmp_path / "other.db").close()
    without(crashed, "-wal", "-shm")
    (tmp_path / "other.db").replace(crashed / "s.db")
    with pytest.raises(
        StoreError, match=r"commits belongs to another store, with 11 commits, that"
    ):
        SqliteStore(crashed / "s.db")


def test_a_deleted_database_is_reported(crashed):
    without(crashed, "", "-wal", "-shm")
    with pytest.raises(
        StoreError, match=r"commits belongs to another store, with 11 commits, that"
    ):
        SqliteStore(crashed / "s.db")
    SqliteStore(crashed / "s.db", accept_missing=True).close()
    SqliteStore(crashed / "s.db").close()


def test_every_flipped_bit_of_a_mark_is_reported(crashed):
    mark = commit_mark.CommitMark(crashed / "s.db")
    intact, whole = mark.read(), mark.path.read_bytes()
    for bit in range(8 * len(whole.rstrip())):
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        mark.path.write_bytes(bad)
        if bad.split() == whole.split():  # a blank became another one
            assert mark.read() == intact
            continue
        with pytest.raises(StoreError, match=r"is damaged.*restore a backup, or run"):
            SqliteStore(crashed / "s.db")
    mark.path.write_bytes(b"longer than a mark " * 50)
    store = SqliteStore(crashed / "s.db", accept_missing=True)
    assert mark.read() == intact._replace(number=intact.number + 1)
    store.close()


def test_the_mark_is_synchronised_after_the_commit(tmp_path, monkeypatch):
    """So it is never ahead; and before the acknowledgement, so it is never behind that."""
    path, seen = tmp_path / "s.db", []
    store, reader = SqliteStore(path), SqliteStore(path, readonly=True)
    mark, synchronise = commit_mark.CommitMark(path), commit_mark._synchronise

    def recorded(file):
        synchronise(file)
        seen.append((reader.get(Table.USERS, [b"a"]), mark.read().number))

    monkeypatch.setattr(commit_mark, "_synchronise", recorded)
    for value in (b"1", b"2", b"3"):
        store.commit({Table.USERS: {b"a": value}})
        assert seen[-1][0] == [value]
    assert [number for _, number in seen] == [2, 3, 4]
    store.close()
    reader.close()


def fail(*_):
    raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def unacknowledged(tmp_path, trained, monkeypatch):
    """Folder of a store whose process ended after an error behind the commit of alice."""
    keeper = open_keeper(trained, f"sqlite:{tmp_path}/live/s.db")
    keeper.observe("bob", "1", 3, seq=1)
    with monkeypatch.context() as patch:
        patch.setattr(commit_mark, "_synchronise", fail)
        patch.setattr(commit_mark.os, "pwrite", fail)
        with pytest.raises(StoreError, match=r"cannot be written: .*Input/output error"):
            keeper.observe("alice", "1", 3, seq=1)
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    with pytest.raises(StoreError, match=r"a commit was interrupted.*: open the store again"):
        keeper.observe("alice", "1", 3, seq=1)
    keeper.close()
    return tmp_path / "crashed"


def durable(path, user):
    """Return whether a record is in the database file alone, without its log."""
    alone = path.with_name("alone.db")
    alone.write_bytes(path.read_bytes())
    reader = SqliteStore(alone, readonly=True)
    (found,) = reader.get(Table.USERS, [user])
    reader.close()
    return found is not None


def test_a_commit_of_unknown_outcome_is_written_to_the_disk_before_it_is_repeated(
    unacknowledged, trained
):
    """It was read from the system's cache, which an I/O error may keep from the disk."""
    path = unacknowledged / "s.db"
    assert not durable(path, b"alice")
    with open_keeper(trained, f"sqlite:{path}") as keeper:
        assert durable(path, b"alice")
        assert not keeper.observe("alice", "1", 3, seq=1)
        assert keeper.stats()["repeated"] == 1


def test_a_commit_of_unknown_outcome_waits_for_a_reader(unacknowledged, monkeypatch):
    """While an older snapshot is open, the log cannot be written to the database."""
    path = unacknowledged / "s.db"
    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.0)
    hold = SqliteStore(path, accept_missing=True)  # any writer, for a log to read
    hold.commit({Table.USERS: {b"carol": b""}})
    reader = SqliteStore(path, readonly=True)
    with reader.snapshot():
        assert reader.get(Table.USERS, [b"carol"]) == [b""]
        monkeypatch.setattr(commit_mark.CommitMark, "write", fail)
        with pytest.raises(StoreError, match="Input/output error"):
            hold.commit({Table.USERS: {b"dave": b""}})
        hold.close()
        monkeypatch.undo()
        monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.0)
        with pytest.raises(StoreError, match="while a reader has an older snapshot open: close"):
            SqliteStore(path)
    reader.close()
    again = SqliteStore(path)
    assert again.get(Table.USERS, [b"dave"]) == [b""]
    again.close()


def test_a_store_that_is_opened_during_a_check_lacks_nothing(tmp_path, monkeypatch):
    """A check that found no mark reads it again when the store turns out to be open."""
    SqliteStore(tmp_path / "s.db").close()
    reader, writers = SqliteStore(tmp_path / "s.db", readonly=True), []
    read = commit_mark.CommitMark.read

    def read_while_another_process_writes(mark):
        if writers:
            writers[0].commit({Table.USERS: {b"a": b"1"}})
            return read(mark)
        with monkeypatch.context() as patch:
            patch.setattr(commit_mark.CommitMark, "read", read)
            writers.append(SqliteStore(tmp_path / "s.db"))
        return None

    monkeypatch.setattr(commit_mark.CommitMark, "read", read_while_another_process_writes)
    assert reader.verify() == []
    writers[0].close()
    reader.close()


def test_a_damaged_number_of_the_last_commit_cannot_be_accepted(tmp_path):
    path = tmp_path / "s.db"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE state SET number = 'x'")
    connection.commit()
    connection.close()
    for accept in (False, True):
        with pytest.raises(StoreError, match=r"is damaged: restore a backup$"):
            SqliteStore(path, accept_missing=accept)


def test_a_store_that_is_opened_beside_a_reader_is_marked_as_open_later(tmp_path):
    """The mark of an open store must leave the log, which may be lost, as soon as it can."""
    path = tmp_path / "s.db"
    SqliteStore(path).close()
    reader = SqliteStore(path, readonly=True)
    with reader.snapshot():
        reader.get(Table.METADATA, [b"x"])
        store = SqliteStore(path)
    store.commit({Table.METADATA: {b"x": b"1"}})
    (tmp_path / "only").mkdir()
    shutil.copy(path, tmp_path / "only")  # without its log and its mark
    with pytest.raises(StoreError, match=r"was not closed, and s\.db\.commits is not beside it"):
        SqliteStore(tmp_path / "only" / "s.db")
    reader.close()
    store.close()


def test_an_error_within_a_snapshot_is_not_hidden(tmp_path):
    """SQLite rolls a transaction back by itself after some errors."""
    store = SqliteStore(tmp_path / "s.db")

    def fail():
        with store.snapshot():
            store.connection.execute("ROLLBACK")
            raise OSError(errno.EIO, "the disk")

    with pytest.raises(OSError, match="the disk"):
        fail()
    store.close()


def test_the_log_of_a_closed_store_is_empty_even_if_a_reader_outlives_the_writer(tmp_path):
    """SQLite would apply a log with content to whatever file takes the place of the store."""
    path = tmp_path / "s.db"
    store, reader = SqliteStore(path), SqliteStore(path, readonly=True)
    store.commit({Table.METADATA: {b"x": b"1"}})
    assert reader.get(Table.METADATA, [b"x"]) == [b"1"]
    store.close()
    assert (tmp_path / "s.db-wal").stat().st_size == 0
    assert reader.get(Table.METADATA, [b"x"]) == [b"1"]
    reader.close()


def test_the_log_shrinks_after_a_long_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "LOG_BYTES", 1 << 20)
    store = SqliteStore(tmp_path / "s.db")
    reader = store.reader()

    def write(count):
        for n in range(count):
            store.commit({Table.METADATA: {b"%d" % n: bytes(1 << 16)}})
        return (tmp_path / "s.db-wal").stat().st_size

    with reader.snapshot():
        reader.get(Table.METADATA, [b"0"])
        assert write(64) > 4 << 20
    assert write(64) <= 1 << 20  # the log is used from its start again, and cut
    reader.close()
    store.close()
