"""Check, backup and restore of stores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dips.serve.keeper import open_keeper
from dips.serve.maintenance import backup, check, restore
from dips.serve.stores.base import RESTORING, StoreError, Table
from dips.serve.stores.registry import open_store
from dips.testing import random_world
from tests.serve.models import events_of, make_model

LOG = events_of(random_world([9, 14, 5], items=12))


def contents(store):
    return {table: list(store.scan(table)) for table in Table}


@pytest.fixture
def kept(url):
    keeper = open_keeper(make_model("reservoir", 4), url)
    keeper.observe_many([{**event, "id": str(n)} for n, event in enumerate(LOG)])
    yield keeper
    keeper.close()


def test_a_restored_backup_equals_the_store(kept, tmp_path):
    """In any kind of store, all rows are equal; a keeper continues with the restored store."""
    rows = backup(kept._store, tmp_path / "b" / "backup")
    for place in ("memory:", f"sqlite:{tmp_path}/again.db"):
        again = open_store(place)
        assert restore(tmp_path / "b" / "backup", again) == rows
        assert contents(again) == contents(kept._store)
        assert check(again) == []
        with open_keeper(make_model("reservoir", 4), again) as keeper:
            assert keeper.sketch("0") == kept.sketch("0")
            assert not keeper.observe("0", "1", 3, id="0")


def test_a_damaged_backup_leaves_the_store_empty(kept, tmp_path):
    path = tmp_path / "backup"
    backup(kept._store, path)
    whole = path.read_bytes()
    store = open_store("memory:")
    for bad in (
        b"",
        b"something else",
        whole[:-1],
        whole[: len(whole) // 2],
        whole[:30] + whole[31:],
    ):
        path.write_bytes(bad)
        with pytest.raises(StoreError, match=r"the backup is damaged|is not a backup of dips"):
            restore(path, store)
        assert not any(contents(store).values())
    with pytest.raises(StoreError, match="cannot be read"):
        restore(tmp_path / "none", store)
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="into an empty store: choose another place"):
        restore(path, kept._store)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", ".commits"])
@pytest.mark.parametrize("spelling", ["the same", "relative", "symbolic link", "sqlite:", "folder"])
def test_a_backup_never_replaces_a_file_of_its_store(tmp_path, monkeypatch, suffix, spelling):
    """By any path; also where the file does not exist, as it may be made later."""
    folder = tmp_path / "store"
    store = open_store(f"sqlite:{folder}/s.db")
    store.commit({Table.USERS: {b"a": b"1"}})
    store.close()
    store = open_store(f"sqlite:{folder}/s.db", readonly=True)
    path = folder / f"s.db{suffix}"
    if spelling == "relative":
        monkeypatch.chdir(folder)
        path = Path(path.name)
    elif spelling == "sqlite:":
        monkeypatch.chdir(tmp_path)
        path = Path(f"sqlite:store/{path.name}")
    elif spelling == "symbolic link":
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    elif spelling == "folder":
        (tmp_path / "other").symlink_to(folder)
        path = tmp_path / "other" / path.name
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(StoreError, match="is a store or a file of one: write the backup to a new"):
        backup(store, path)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    store.close()


def test_a_backup_never_replaces_a_second_name_of_its_store(tmp_path):
    store = open_store(f"sqlite:{tmp_path}/s.db")
    os.link(tmp_path / "s.db", tmp_path / "hard.db")
    with pytest.raises(StoreError, match="is a store or a file of one"):
        backup(store, tmp_path / "hard.db")
    assert backup(store, tmp_path / "other.backup") == 0
    assert backup(store, tmp_path / "other.backup") == 0  # a backup may be replaced
    store.close()


def test_an_interrupted_restore_cannot_be_opened_by_a_keeper():
    store = open_store("memory:")
    store.commit({Table.METADATA: {RESTORING: b"1"}})
    with pytest.raises(StoreError, match="a restore into this store was interrupted"):
        open_keeper(make_model(), store)
    assert check(store) == [
        "a restore into this store was interrupted: restore the backup into a new store"
    ]


def test_a_backup_of_dips_0_1_is_refused_by_name(tmp_path):
    (tmp_path / "old").write_bytes(b"dips backup 1\n")
    with pytest.raises(StoreError, match=r"was written by dips 0\.1"):
        restore(tmp_path / "old", open_store("memory:"))
