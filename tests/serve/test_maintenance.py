"""Backup, restore, resize and shadow."""

from __future__ import annotations

import pytest

from dips.serve.keeper import open_keeper
from dips.serve.maintenance import backup, check, restore
from dips.serve.stores.base import RESTORING, StoreError, Table, open_store
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


def test_a_backup_is_the_store(kept, tmp_path):
    """Into any kind of store, equal to the byte; the keeper goes on from there."""
    rows = backup(kept._store, tmp_path / "b" / "backup")
    for place in ("memory:", f"sqlite:{tmp_path}/again.db"):
        again = open_store(place)
        assert restore(tmp_path / "b" / "backup", again) == rows
        assert contents(again) == contents(kept._store)
        assert check(again) == []
        with open_keeper(make_model("reservoir", 4), again) as keeper:
            assert keeper.sketch("0") == kept.sketch("0")
            assert not keeper.observe("0", "1", 3, id="0")


def test_bad_backups_leave_the_store_empty(kept, tmp_path):
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


def test_an_interrupted_restore_is_not_taken_for_a_store():
    store = open_store("memory:")
    store.commit({Table.FACTS: {RESTORING: b"1"}})
    with pytest.raises(StoreError, match="a restore into this store was interrupted"):
        open_keeper(make_model(), store)


def test_shrinking_now_or_later_is_the_same_choice(kept):
    """Of four lots the two highest stay; growing keeps all that is there."""
    before = {user: kept.sketch(user) for user in ("0", "1", "2")}
    kept.swap(make_model("reservoir", 2))
    assert kept.resize() == 3
    assert kept.resize() == 0
    fresh = open_keeper(make_model("reservoir", 2), "memory:")
    fresh.observe_many(LOG)
    for user, old in before.items():
        new = kept.sketch(user)
        assert set(new.items) <= set(old.items)
        wanted = fresh.sketch(user).entries  # the sample is the same as from the start
        assert [e.position for e in new.entries] == [e.position for e in wanted]
        assert new.policy == 2
    kept.swap(make_model("reservoir", 6))
    assert kept.resize() == 0
    kept.observe("0", "5", 3)
    assert len(kept.sketch("0").entries) == 3


def test_a_shadow_changes_nothing_and_counts_differences():
    keeper, alone = (open_keeper(make_model("last", 3), "memory:") for _ in range(2))
    same, other = keeper.shadow(make_model("last", 3, seed=5)), None
    keeper.observe_many(LOG[:12])
    assert same.refreshes > 0
    assert same.report()["different"] == 0
    assert same.report()["kept_by_both"] == 1.0
    other = keeper.shadow(make_model("reservoir", 3))
    keeper.observe_many([{**event, "item": f"new {n % 4}"} for n, event in enumerate(LOG[12:])])
    report = other.report()
    assert 0 < report["different"] <= report["refreshes"]
    assert 0 < report["kept_by_both"] < 1
    assert report["mean_age"]["shadow"] > report["mean_age"]["live"]
    assert keeper.shadow(None) is None
    alone.observe_many(LOG[:12])
    alone.observe_many([{**event, "item": f"new {n % 4}"} for n, event in enumerate(LOG[12:])])
    assert [keeper.sketch(u) for u in "012"] == [alone.sketch(u) for u in "012"]
