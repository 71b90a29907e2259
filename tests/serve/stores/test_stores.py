"""Conformance suite of stores: tables of bytes with atomic commits."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dips.errors import ConfigError
from dips.serve.stores.base import StoreError, Table
from dips.serve.stores.registry import open_store

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
def test_a_store_behaves_as_dictionaries(store, changes, prefix):
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
        keys = [*rows, b"nobody", prefix]
        assert store.get(table, keys) == [rows.get(key) for key in keys]


def test_a_scan_returns_all_rows_of_a_large_table(store):
    rows = {n.to_bytes(4, "big"): bytes(3) for n in range(10_000)}
    store.commit({Table.USERS: rows})
    assert dict(store.scan(Table.USERS)) == rows
    assert len(list(store.scan(Table.USERS, bytes(3)))) == 256


def test_a_commit_is_atomic(durable):
    store = open_store(durable)
    store.commit({Table.USERS: {b"a": b"1"}})
    with pytest.raises(StoreError, match="cannot be written"):
        store.commit({Table.METADATA: {b"x": b"y"}, Table.USERS: {b"a": b"2", b"b": object()}})
    assert list(store.scan(Table.USERS)) == [(b"a", b"1")]
    assert not list(store.scan(Table.METADATA))
    store.close()


def test_a_staged_change_is_visible_to_get(store):
    store.commit({Table.USERS: {b"a": b"1", b"c": b"3", b"d": b"4"}})
    change = {b"a": b"2", b"b": b"", b"c": None}
    write = store.stage({Table.USERS: change, Table.METADATA: {b"x": b""}})
    assert store.get(Table.USERS, [b"b", b"a", b"d", b"c"]) == [b"", b"2", b"4", None]
    assert store.get(Table.METADATA, [b"x", b"y"]) == [b"", None]
    assert store.get(Table.EVENT_IDS, [b"x"]) == [None]
    worker = threading.Thread(target=write)
    worker.start()
    worker.join()
    assert list(store.scan(Table.USERS)) == [(b"a", b"2"), (b"b", b""), (b"d", b"4")]
    assert list(store.scan(Table.METADATA)) == [(b"x", b"")]
    store.commit({Table.USERS: {b"a": None}})  # a commit may follow


def test_a_staged_change_that_was_not_written_is_lost(durable):
    """Other readers do not see it, and it is not in the store after closing."""
    store = open_store(durable)
    store.commit({Table.USERS: {b"a": b"1"}})
    write = store.stage({Table.USERS: {b"a": b"2"}})
    reader = open_store(durable, readonly=True)
    assert reader.get(Table.USERS, [b"a"]) == [b"1"]
    write()
    assert reader.get(Table.USERS, [b"a"]) == [b"2"]
    reader.close()
    store.stage({Table.USERS: {b"a": b"3"}})
    store.close()
    again = open_store(durable)
    assert again.get(Table.USERS, [b"a"]) == [b"2"]
    with pytest.raises(StoreError, match="cannot be written"):
        again.stage({Table.USERS: {b"a": b"4", b"b": object()}})()
    assert again.get(Table.USERS, [b"a"]) == [b"2"]
    again.close()


def test_compact_and_verify_change_no_rows(store):
    store.commit({Table.USERS: {b"a": b"1", b"b": b"2"}})
    store.commit({Table.USERS: {b"b": None}})
    store.compact()
    assert store.verify() == []
    with store.snapshot():
        assert list(store.scan(Table.USERS)) == [(b"a", b"1")]


def test_commits_are_there_after_opening_again(durable):
    first = open_store(durable)
    first.commit({Table.USERS: {b"a": b"1"}})
    first.close()
    for readonly in (True, False):
        again = open_store(durable, readonly=readonly)
        assert again.get(Table.USERS, [b"a"]) == [b"1"]
        again.close()


def test_one_process_writes_and_others_read(durable):
    writer = open_store(durable)
    writer.commit({Table.USERS: {b"a": b"1"}})
    with pytest.raises(StoreError, match="is in use: another process writes to it"):
        open_store(durable)
    reader = open_store(durable, readonly=True)
    with reader.snapshot():
        assert reader.get(Table.USERS, [b"a"]) == [b"1"]
        writer.commit({Table.USERS: {b"a": b"2"}})
        assert reader.get(Table.USERS, [b"a"]) == [b"1"]
    assert reader.get(Table.USERS, [b"a"]) == [b"2"]
    with pytest.raises(StoreError, match="cannot be written"):
        reader.commit({Table.USERS: {b"a": b"3"}})
    reader.close()
    writer.close()
    open_store(durable).close()


@pytest.mark.parametrize("url", ["", "redis", "sqlite:", "memory:x", "postgres:x", "a.db"])
def test_unknown_urls_are_refused(url):
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
