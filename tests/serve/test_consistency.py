"""`store check` reports every row that is missing, and every table that was emptied or dropped."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from dips.serve.keeper import open_keeper
from dips.serve.maintenance import check
from dips.serve.stores.base import StoreError, Table
from dips.serve.stores.registry import open_store
from tests.serve.models import make_model

USERS = [f"user {n}" for n in range(6)]
LOG = [
    {"user": USERS[n // 4], "item": f"new {n % 7}", "rating": 3, "id": str(n)} for n in range(24)
]
TABLES = [*Table, "journal", "state"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of an intact store; the last user is in the journal, the others in the table."""
    made = tmp_path_factory.mktemp("intact")
    url = f"sqlite:{made}/s.db"
    with open_keeper(make_model("last", 3), url, batch=4, id_bytes=64 * 10) as keeper:
        keeper.observe_many(LOG[:16])
        keeper.forget("user 1")
        keeper.compact()
        keeper.observe_many(LOG[16:])
        assert keeper._store.stats() == {"journal": 1}
    store = open_store(url, readonly=True)
    assert check(store) == []
    store.close()
    return made


@pytest.fixture
def damaged(folder, tmp_path):
    """Return a function that runs a statement on a copy, and returns what `check` finds."""

    def run(statement, *values):
        copy = shutil.copytree(folder, tmp_path / "copy")
        connection = sqlite3.connect(copy / "s.db")
        with connection:
            changed = connection.execute(statement, values).rowcount
        connection.close()
        assert changed
        try:
            store = open_store(f"sqlite:{copy}/s.db", readonly=True)
            found = check(store)
            store.close()
        except StoreError as error:
            found = [str(error)]
        shutil.rmtree(copy)
        return found

    return run


def rows(folder, table):
    connection = sqlite3.connect(folder / "s.db")
    key = {"journal": "number", "state": "number"}.get(table, "key")
    found = [row[0] for row in connection.execute(f"SELECT {key} FROM {table}")]
    connection.close()
    return key, found


@pytest.mark.parametrize("table", TABLES)
def test_every_missing_row_is_reported(folder, damaged, table):
    key, found = rows(folder, table)
    assert found
    for value in found:
        assert damaged(f"DELETE FROM {table} WHERE {key} = ?", value), value


@pytest.mark.parametrize("table", TABLES)
def test_an_emptied_or_dropped_table_is_reported(damaged, table):
    assert damaged(f"DELETE FROM {table}")
    assert damaged(f"DROP TABLE {table}")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM users", "the store holds 1 users, and its counter says 5"),
        ("DELETE FROM metadata WHERE key = CAST('counters' AS BLOB)", "rows of metadata are miss"),
        ("DELETE FROM event_ids", "holds 0 event ids at 10 places of the order of arrival, up to"),
        ("DELETE FROM id_order", "holds 10 event ids at 0 places of the order of arrival, up to"),
        ("DELETE FROM journal", "entries of the journal are missing: restore a backup"),
        ("DELETE FROM state", "the number of its last commit is damaged"),
        ("UPDATE state SET is_closed = 0", "was not closed, and s.db.commits is not beside it"),
    ],
)
def test_what_is_missing_is_named(damaged, statement, message):
    assert any(message in fault for fault in damaged(statement))


def test_two_ids_that_changed_places_are_reported(folder, damaged):
    """Each row has an intact checksum, as it was written for its key."""
    store = open_store(f"sqlite:{folder}/s.db", readonly=True)
    first, second = [key for key, _ in store.scan(Table.EVENT_IDS)][:2]
    store.close()
    query = "UPDATE event_ids SET key = ? WHERE key = ?"
    assert damaged(query, bytes(16), first)
    assert damaged("DELETE FROM event_ids WHERE key = ?", second)


def test_any_kind_of_store_is_checked(url):
    """A record that is written past the keeper has no counter."""
    with open_keeper(make_model("last", 3), url) as keeper:
        keeper.observe("alice", "1", 3, id="1")
        assert check(keeper._store) == []
        (record,) = keeper._store.get(Table.USERS, [b"alice"])
        keeper._store.commit({Table.USERS: {b"alice": None}})
        message = "the store holds 0 users, and its counter says 1: restore a backup"
        assert check(keeper._store) == [message]
        keeper._store.commit({Table.USERS: {b"alice": record}})
        ((place, key),) = keeper._store.scan(Table.ID_ORDER)
        keeper._store.commit({Table.ID_ORDER: {place: b"another id"}})
        assert "and 1 do not agree: restore a backup" in check(keeper._store)[0]
        keeper._store.commit({Table.ID_ORDER: {place: None}, Table.EVENT_IDS: {key: None}})
        message = "holds 0 event ids at 0 places of the order of arrival, up to number 0 of 1"
        assert message in check(keeper._store)[0]
