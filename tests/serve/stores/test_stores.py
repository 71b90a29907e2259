"""What every store has to be: a few tables of bytes, changed atomically."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dips.errors import ConfigError
from dips.serve.stores.base import StoreError, Table, open_store

keys = st.binary(min_size=0, max_size=5)
changes = st.lists(
    st.dictionaries(
        st.sampled_from(Table),
        st.dictionaries(keys, st.one_of(st.none(), st.binary(max_size=200)), max_size=5),
    ),
    max_size=8,
)


@pytest.fixture
def store(url):
    made = open_store(url)
    yield made
    made.close()


@given(changes=changes, prefix=keys)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_store_is_a_dictionary(store, changes, prefix):
    for table in Table:
        store.commit({table: {key: None for key, _ in store.scan(table)}})
    model = {table: {} for table in Table}
    for change in changes:
        store.commit(change)
        for table, rows in change.items():
            model[table].update(rows)
            model[table] = {k: v for k, v in model[table].items() if v is not None}
    for table, rows in model.items():
        assert list(store.scan(table)) == sorted(rows.items())
        assert list(store.scan(table, prefix)) == sorted(
            pair for pair in rows.items() if pair[0].startswith(prefix)
        )
        asked = [*rows, b"nobody", prefix]
        assert store.get(table, asked) == [rows.get(key) for key in asked]


def test_a_scan_goes_over_many_rows(store):
    rows = {n.to_bytes(4, "big"): bytes(3) for n in range(10_000)}
    store.commit({Table.USERS: rows})
    assert dict(store.scan(Table.USERS)) == rows
    assert len(list(store.scan(Table.USERS, bytes(3)))) == 256


def test_a_commit_is_whole_or_nothing(lasting):
    store = open_store(lasting)
    store.commit({Table.USERS: {b"a": b"1"}})
    with pytest.raises(StoreError, match="cannot be written"):
        store.commit({Table.FACTS: {b"x": b"y"}, Table.USERS: {b"a": b"2", b"b": object()}})
    assert list(store.scan(Table.USERS)) == [(b"a", b"1")]
    assert not list(store.scan(Table.FACTS))
    store.close()


def test_the_first_half_of_a_commit_is_seen_here_only(store):
    store.commit({Table.USERS: {b"a": b"1", b"c": b"3", b"d": b"4"}})
    change = {b"a": b"2", b"b": b"", b"c": None}
    end = store.stage({Table.USERS: change, Table.FACTS: {b"x": b""}})
    assert store.get(Table.USERS, [b"b", b"a", b"d", b"c"]) == [b"", b"2", b"4", None]
    assert store.get(Table.FACTS, [b"x", b"y"]) == [b"", None]
    assert store.get(Table.IDS, [b"x"]) == [None]
    worker = threading.Thread(target=end)
    worker.start()
    worker.join()
    assert list(store.scan(Table.USERS)) == [(b"a", b"2"), (b"b", b""), (b"d", b"4")]
    assert list(store.scan(Table.FACTS)) == [(b"x", b"")]
    store.commit({Table.USERS: {b"a": None}})  # a commit may follow


def test_half_a_commit_is_nothing(lasting):
    """Others do not see it, and it does not outlive the process that made it."""
    store = open_store(lasting)
    store.commit({Table.USERS: {b"a": b"1"}})
    end = store.stage({Table.USERS: {b"a": b"2"}})
    reader = open_store(lasting, readonly=True)
    assert reader.get(Table.USERS, [b"a"]) == [b"1"]
    end()
    assert reader.get(Table.USERS, [b"a"]) == [b"2"]
    reader.close()
    store.stage({Table.USERS: {b"a": b"3"}})
    store.close()
    again = open_store(lasting)
    assert again.get(Table.USERS, [b"a"]) == [b"2"]
    with pytest.raises(StoreError, match="cannot be written"):
        again.stage({Table.USERS: {b"a": b"4", b"b": object()}})()
    assert again.get(Table.USERS, [b"a"]) == [b"2"]
    again.close()


def test_compacting_and_verifying_change_nothing(store):
    store.commit({Table.USERS: {b"a": b"1", b"b": b"2"}})
    store.commit({Table.USERS: {b"b": None}})
    store.compact()
    assert store.verify() == []
    with store.snapshot():
        assert list(store.scan(Table.USERS)) == [(b"a", b"1")]


def test_what_was_committed_is_there_after_opening_again(lasting):
    first = open_store(lasting)
    first.commit({Table.USERS: {b"a": b"1"}})
    first.close()
    for readonly in (True, False):
        again = open_store(lasting, readonly=readonly)
        assert again.get(Table.USERS, [b"a"]) == [b"1"]
        again.close()


def test_one_process_writes_and_others_read(lasting):
    writer = open_store(lasting)
    writer.commit({Table.USERS: {b"a": b"1"}})
    with pytest.raises(StoreError, match="is in use: another process writes to it"):
        open_store(lasting)
    reader = open_store(lasting, readonly=True)
    with reader.snapshot():
        assert reader.get(Table.USERS, [b"a"]) == [b"1"]
        writer.commit({Table.USERS: {b"a": b"2"}})
        assert reader.get(Table.USERS, [b"a"]) == [b"1"]
    assert reader.get(Table.USERS, [b"a"]) == [b"2"]
    with pytest.raises(StoreError, match="cannot be written"):
        reader.commit({Table.USERS: {b"a": b"3"}})
    reader.close()
    writer.close()
    open_store(lasting).close()


@pytest.mark.parametrize("url", ["", "redis", "sqlite:", "memory:x", "postgres:x", "a.db"])
def test_unknown_addresses_are_refused(url):
    with pytest.raises(ConfigError, match=r"choose memory: or sqlite:PATH"):
        open_store(url)


def test_other_files_are_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look at " * 50)
    with pytest.raises(StoreError, match=r"notes\.txt cannot be opened: file is not a database"):
        open_store(f"sqlite:{text}")
    other = tmp_path / "other.db"
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('CREATE TABLE t (x)')"
    subprocess.run([sys.executable, "-c", code, other], check=True)
    with pytest.raises(StoreError, match=r"other\.db is not a store of this version of dips"):
        open_store(f"sqlite:{other}")
    with pytest.raises(StoreError, match="there is no such store; make one with 'dips stream'"):
        open_store(f"sqlite:{tmp_path}/none.db", readonly=True)
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(f"sqlite:{text}/below/store.db")
