"""Full disks, truncated logs, flipped bits, erasure: damage is detected, deleted data is gone."""

from __future__ import annotations

import random
import shutil

import pytest

from dips.serve.fields import MAX_SEQ
from dips.serve.keeper import open_keeper
from dips.serve.maintenance import check
from dips.serve.records import RecordError
from dips.serve.stores.base import StoreError, Table
from dips.serve.stores.registry import open_store
from dips.serve.warm_start import warm_start
from tests.serve.crashing import write_log
from tests.serve.fold import fold, state_of
from tests.serve.models import make_model

SIZE, USERS = 3, [f"user {n}" for n in range(12)]


def log_of(length, seed=0):
    return [entry for entry in write_log(length, seed) if "user" in entry]


@pytest.fixture
def trained():
    return make_model("frequent", SIZE)


def test_after_a_full_disk_the_same_events_can_be_sent_again(tmp_path, trained):
    """A commit that does not fit is not written at all."""
    users = [f"user {n}" for n in range(200)]
    log = [
        {"user": users[n * 7 % 200], "item": str(n % 12), "rating": 3.0, "time": n, "seq": n}
        for n in range(500)
    ]
    with open_keeper(trained, f"sqlite:{tmp_path}/s.db", batch=20) as keeper:
        connection = keeper._store.connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreError, match="cannot be written: database or disk is full"):
            keeper.observe_many(log)
        done = keeper.stats()["applied"]
        assert state_of(keeper, users) == fold(log[:done], "frequent", SIZE)
        connection.execute("PRAGMA max_page_count = 100000")
        keeper.observe_many(log)  # all events again: sequence numbers prevent duplicates
        assert state_of(keeper, users) == fold(log, "frequent", SIZE)
    assert 0 < done < len(log)


@pytest.fixture
def crashed(tmp_path, trained):
    """Files of a store after a crash, with a write-ahead log, and its state after each commit."""
    folder = tmp_path / "live"
    keeper = open_keeper(trained, f"sqlite:{folder}/s.db", batch=10)
    log = log_of(120)
    states = [{}]
    for start in range(0, len(log), 10):
        keeper.observe_many(log[start : start + 10])
        states.append(state_of(keeper, USERS))
    shutil.copytree(folder, tmp_path / "crashed")
    keeper.close()
    return tmp_path / "crashed", states


def copied(folder, name):
    return shutil.copytree(folder, folder.parent / name)


def test_a_truncated_log_ends_with_its_last_complete_commit(crashed, trained):
    """What is missing is reported; it can be accepted, and sent again."""
    folder, states = crashed
    length = (folder / "s.db-wal").stat().st_size
    found = set()
    for place in range(9):
        truncated = copied(folder, f"truncated {place}")
        with (truncated / "s.db-wal").open("r+b") as file:
            file.truncate(length * (place + 1) // 9 - 7 * place)
        held = accepted(f"sqlite:{truncated}/s.db", trained)
        assert held in states
        found.add(states.index(held))
    assert len(found) > 3


def test_flipped_bits_in_the_log_are_detected(crashed, trained):
    folder, states = crashed
    rng, reported = random.Random(0), 0
    for turn in range(9):
        bad = copied(folder, f"flipped {turn}")
        flip(bad / "s.db-wal", rng)
        url = f"sqlite:{bad}/s.db"
        try:
            with open_keeper(trained, url) as keeper:  # the bit is in no page, or in an older one
                assert state_of(keeper, USERS) == states[-1]
        except StoreError:
            assert accepted(url, trained) in states
            reported += 1
    assert reported > 5


def accepted(url, trained):
    """Return the state of a store that lacks commits, after they were accepted as missing."""
    with pytest.raises(StoreError, match=r"lacks commits \d+ to \d+, which were acknowledged"):
        open_keeper(trained, url)
    reader = open_store(url, readonly=True)
    assert "lacks commits" in check(reader)[0]
    reader.close()
    open_store(url, accept_missing=True).close()
    with open_keeper(trained, url) as keeper:
        assert check(keeper._store) == []
        return state_of(keeper, USERS)


def test_flipped_bits_in_the_file_are_detected(crashed, trained):
    """A flip changes nothing that is read, or `check` reports it."""
    folder, _ = crashed
    open_store(f"sqlite:{folder}/s.db").close()  # checkpoints the log
    store = open_store(f"sqlite:{folder}/s.db")
    intact = {table: list(store.scan(table)) for table in Table}
    store.close()
    rng, detected = random.Random(1), 0
    for turn in range(60):
        bad = copied(folder, f"damaged {turn}")
        flip(bad / "s.db", rng)
        try:
            store = open_store(f"sqlite:{bad}/s.db", readonly=True)
        except StoreError:
            detected += 1
            continue
        if check(store):
            detected += 1
        else:
            assert {table: list(store.scan(table)) for table in Table} == intact
        store.close()
    assert detected > 5  # most of so small a file is empty


@pytest.mark.parametrize("table", [Table.USERS, Table.METADATA])
@pytest.mark.parametrize("value", ["NULL", "7", "'text'"])
def test_a_row_of_another_type_is_detected(tmp_path, table, value):
    """A flipped bit can change the type of a row, which SQLite accepts."""
    store = open_store(f"sqlite:{tmp_path}/s.db")
    store.commit({table: {b"alice": b"1"}})
    store.compact()
    store.connection.executescript(f"""
        ALTER TABLE {table} RENAME TO old;
        CREATE TABLE {table} (key, value);
        INSERT INTO {table} VALUES (CAST('alice' AS BLOB), {value});
    """)
    for read in (lambda: store.get(table, [b"alice"]), lambda: list(store.scan(table))):
        with pytest.raises(StoreError, match=f"a row of {table} is damaged: restore a backup"):
            read()
    assert "is damaged" in check(store)[0]
    store.close()


def test_damage_in_the_schema_is_reported(tmp_path):
    """SQLite's message quotes the damaged bytes and cannot be decoded."""
    path = tmp_path / "s.db"
    open_store(f"sqlite:{path}").close()
    path.write_bytes(
        path.read_bytes().replace(b"CREATE TABLE id_order", b"CR\xc5ATE TABLE id_order")
    )
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(f"sqlite:{path}", readonly=True)


def flip(path, rng):
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def test_a_damaged_record_affects_only_its_user(url, trained):
    with open_keeper(trained, url) as keeper:
        for user in ("alice", "bob"):
            keeper.observe(user, "1", 3)
        store = keeper._store
        (record,) = store.get(Table.USERS, [b"alice"])
        store.commit({Table.USERS: {b"alice": record[:-1] + b"\x07"}})
        with pytest.raises(RecordError, match="the record of user 'alice' is damaged"):
            keeper.sketch("alice")
        events = [{"user": user, "item": "2", "rating": 4} for user in ("alice", "bob")]
        result = keeper.observe_many(events)
        assert result.applied == 1
        reason = result.refused[0].reason
        assert "record of user 'alice' is damaged: restore it from a backup" in reason
        assert keeper.sketch("bob").items == ["1", "2"]
        assert "alice" in check(store)[0]
        assert keeper.forget("alice")
        keeper.readmit("alice")
        assert keeper.observe("alice", "2", 3)


def damage(keeper, user):
    """Change the last byte of a user's record."""
    key, store = user.encode(), keeper._store
    (record,) = store.get(Table.USERS, [key])
    store.commit({Table.USERS: {key: record[:-1] + bytes([record[-1] ^ 7])}})


@pytest.mark.parametrize("field", ["seq", "id", "neither"])
def test_a_damaged_user_who_is_forgotten_stays_forgotten(url, trained, field):
    """The last sequence number is lost with the record, so no event is applied."""
    log = [{"user": "alice", "item": "1", "rating": 3, field: n + 1} for n in range(5)]
    with open_keeper(trained, url) as keeper:
        assert keeper.observe_many(log).applied == 5
        damage(keeper, "alice")
        assert keeper.forget("alice")
        later = {"user": "alice", "item": "1", "rating": 3, "seq": MAX_SEQ - 1}
        assert keeper.observe_many([*log, later]).forgotten == 6
        assert keeper.sketch("alice").seen == 0
        keeper.readmit("alice")
        assert keeper.observe_many([later]).applied == 1


def test_resize_leaves_damaged_records_as_they_are(url):
    with open_keeper(make_model("last", 4), url, batch=3) as keeper:
        keeper.observe_many(
            {"user": user, "item": str(n), "rating": 3} for n in range(4) for user in USERS
        )
        for user in ("user 0", "user 7"):
            damage(keeper, user)
        keeper.swap(make_model("last", 2))
        reason = "is damaged: restore it from a backup, or forget and readmit the user"
        assert keeper.resize() == (10, {"user 0": reason, "user 7": reason})
        assert [s.items for s in keeper.sketches(["user 1", "user 9"])] == [["2", "3"]] * 2
        for user in ("user 0", "user 7"):
            with pytest.raises(RecordError, match=reason):
                keeper.sketch(user)


def test_an_import_refuses_damaged_users_and_goes_on(url, trained):
    lists = [(user, [{"item": "1"}, {"item": "2"}]) for user in (*USERS, None, "new")]
    with open_keeper(trained, url, batch=100) as keeper:
        keeper.observe_many({"user": user, "item": "3", "rating": 3} for user in USERS[:9])
        damage(keeper, "user 3")
        result = warm_start(keeper, lists, rating=3.0)
        assert (result.applied, result.repeated) == (2 * 4, 2 * 8)
        reasons = [refused.reason for refused in result.refused]
        assert len(reasons) == 4
        assert sum("record of user 'user 3' is damaged" in reason for reason in reasons) == 2
        assert sum("user must be a text" in reason for reason in reasons) == 2
        assert keeper.sketch("new").items == ["1", "2"]


def test_erasure_removes_all_bytes_of_a_user_from_the_files(tmp_path, trained):
    """The name and a value that only this user has are in the files before, and not after."""
    folder = tmp_path / "store"
    secrets = [b"alice in wonderland", b"\x15\xcd\x5b\x07"]  # the time 123456789 as bytes
    with open_keeper(trained, f"sqlite:{folder}/s.db") as keeper:
        for place in range(300):
            keeper.observe(f"user {place}", "1", 3, 5, seq=1)
        log = [
            {
                "user": "alice in wonderland",
                "item": str(n),
                "rating": 3,
                "time": 123456789,
                "seq": n,
            }
            for n in range(6)
        ]
        keeper.observe_many(log)
        assert all(secret in contents(folder) for secret in secrets)
        keeper.forget("alice in wonderland")
        keeper.compact()
        assert not any(secret in contents(folder) for secret in secrets)
        assert keeper.observe_many(log).forgotten == 6
        assert not any(secret in contents(folder) for secret in secrets)
    assert not any(secret in contents(folder) for secret in secrets)


def test_compact_reports_an_open_snapshot(tmp_path, trained):
    """The log cannot be emptied while a reader has an older snapshot open."""
    url = f"sqlite:{tmp_path}/s.db"
    with open_keeper(trained, url) as keeper:
        keeper.observe("alice", "1", 3)
        keeper._store.connection.execute("PRAGMA busy_timeout = 0")
        reader = open_store(url, readonly=True)
        with reader.snapshot():
            assert len(list(reader.scan(Table.USERS))) == 1
            keeper.forget("alice")
            with pytest.raises(StoreError, match="compact it again"):
                keeper.compact()
            assert b"alice" in contents(tmp_path)
        reader.close()
        keeper.compact()
        assert b"alice" not in contents(tmp_path)


def contents(folder):
    return b"".join(path.read_bytes() for path in folder.iterdir())
