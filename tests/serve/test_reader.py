"""Readers beside a writer: the same results as the keeper's, of the newest acknowledged commit."""

from __future__ import annotations

import shutil
import threading

import numpy as np
import pytest

import dips
from dips.errors import ConfigError, DataError, RunError
from dips.serve.keeper import open_keeper
from dips.serve.reader import open_reader, read_sketches
from dips.serve.stores.base import RESTORING, StoreError, Table
from tests.serve.crashing import write_log
from tests.serve.models import make_model

USERS = [*(f"user {n}" for n in range(12)), "nobody"]
MODELS = [
    ("last", (2, 1), {}),
    ("frequent", (1,), {"loss": "softmax", "filter_sketch": True}),
    ("learned", (1,), {"loss": "softmax", "inner_loss": "linearised", "recency_decay": True}),
    ("reservoir", (2,), {"loss": "softmax", "repeat_feature": True, "recency_decay": True}),
    ("learned", (1,), {"loss": "cce", "form": "mlp"}),
]


def results_of(place) -> list:
    """Return what a keeper or a reader answers about all users."""
    return [
        (place.sketch(user), place.recommend(user, 5), place.recommend(user, 30, exclude=["1", 4]))
        for user in USERS
    ] + place.sketches(USERS)


@pytest.mark.parametrize(("policy", "periods", "more"), MODELS, ids=str)
def test_a_reader_answers_as_the_keeper_does(durable, policy, periods, more):
    """At any time: with new users and items, after erasures, and with entries that wait."""
    model = make_model(policy, 3, periods, **more)
    log = [entry for entry in write_log(120, seed=3) if "swap" not in entry]
    with open_keeper(model, durable) as keeper, open_reader(model, durable) as reader:
        for place, entry in enumerate(log):
            if "forget" in entry:
                keeper.forget(entry["forget"])
            else:
                new = {"item": f"new {place}"} if place % 7 == 0 else {}
                keeper.observe_many([{**entry, **new}])
            if place % 20 == 0:
                assert results_of(reader) == results_of(keeper)
        assert results_of(reader) == results_of(keeper)
        assert any(item.startswith("new") for s in reader.sketches(USERS) for item in s.items)


def test_a_reader_keeps_its_model_when_the_keeper_swaps(durable):
    first, second = make_model("last", 3, seed=1), make_model("last", 2, seed=2)
    with open_keeper(first, durable) as keeper, open_reader(first, durable) as reader:
        keeper.observe("u", "1", 3)
        before = reader.recommend("u", 5)
        keeper.swap(second)
        assert reader.recommend("u", 5) == before != keeper.recommend("u", 5)
        assert reader.sketch("u") == keeper.sketch("u")
        with open_reader(second, durable) as other:
            assert other.recommend("u", 5) == keeper.recommend("u", 5)


def test_sketches_of_several_users_are_of_one_commit(durable):
    """Each commit holds one event of each of two users: they have always seen as many."""
    log = [{"user": user, "item": "1", "rating": 3} for _ in range(150) for user in "ab"]
    model, found = make_model(), []
    with open_keeper(model, durable, batch=2) as keeper, open_reader(model, durable) as reader:
        writer = threading.Thread(target=keeper.observe_many, args=(log,))
        writer.start()
        while writer.is_alive():
            found.append([sketch.seen for sketch in reader.sketches(["a", "b"])])
        writer.join()
        assert [sketch.seen for sketch in reader.sketches(["a", "b"])] == [150, 150]
    assert all(first == second for first, second in found)
    assert len({first for first, _ in found}) > 2  # it has read while commits happened


def test_reads_of_the_keeper_do_not_wait_for_the_model(url, monkeypatch):
    """Another thread reads while the model updates sketches."""
    keeper, found = open_keeper(make_model(), url), []
    keeper.observe("u", "1", 3)
    apply_arrivals = keeper._engine.apply_arrivals

    def read_meanwhile(*arguments):
        def read():
            found.append((keeper.sketch("u").items, len(keeper.recommend("u", 2))))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(60)  # for ever, if it waits
        apply_arrivals(*arguments)

    monkeypatch.setattr(keeper._engine, "apply_arrivals", read_meanwhile)
    keeper.observe("u", "2", 3)
    assert found == [(["1"], 2)]
    assert keeper.sketch("u").items == ["1", "2"]
    keeper.close()


def test_an_open_reader_holds_no_snapshot(durable, tmp_path):
    """After each call SQLite can empty its log, so the log does not grow under a long reader."""
    model = make_model()
    with open_keeper(model, durable) as keeper, open_reader(model, durable) as reader:
        keeper._store.connection.execute("PRAGMA busy_timeout = 0")
        for item in ("1", "2", "3"):
            keeper.observe("u", item, 3)
            assert reader.sketch("u").items[-1] == item
            assert reader.recommend("u", 1)
            keeper.compact()  # an error, if a snapshot is open
            assert not any(path.stat().st_size for path in tmp_path.glob("*-wal"))


def test_a_reader_writes_nothing_and_takes_no_lock(durable):
    model = make_model()
    with pytest.raises(StoreError, match="there is no such store"):
        open_reader(model, durable)
    open_keeper(model, durable).close()
    with open_reader(model, durable) as reader, open_keeper(model, durable):
        with pytest.raises(StoreError, match="cannot be written"):
            reader._store.commit({Table.USERS: {b"u": b"x"}})
        assert reader.sketch("u").seen == 0


def test_a_reader_notices_that_its_file_was_replaced(tmp_path):
    model, path = make_model(), tmp_path / "s.db"
    open_keeper(model, f"sqlite:{path}").close()
    with open_reader(model, f"sqlite:{path}") as reader:
        shutil.copy(path, tmp_path / "copy.db")
        (tmp_path / "copy.db").replace(path)
        with pytest.raises(StoreError, match=r"s\.db was moved, replaced or removed"):
            reader.sketch("u")
    with open_reader(model, f"sqlite:{path}") as again:
        assert again.sketch("u").items == []


def test_a_store_that_is_restored_in_part_is_not_read(tmp_path):
    model, url = make_model(), f"sqlite:{tmp_path}/s.db"
    with open_keeper(model, url) as keeper:
        keeper.observe("u", "1", 3)
        keeper._store.commit({Table.METADATA: {RESTORING: b"1"}})
    for read in (lambda: open_reader(model, url), lambda: read_sketches(url, ["u"])):
        with pytest.raises(StoreError, match="a restore into this store was interrupted"):
            read()


def test_what_a_reader_refuses_to_open(durable, tmp_path):
    with pytest.raises(ConfigError, match="'memory:' can be read only by its keeper"):
        open_reader(make_model(), "memory:")
    with pytest.raises(RunError, match="is not a finished run"):
        open_reader(tmp_path, durable)


@pytest.mark.parametrize(("arguments", "reason"), [
    ({"n": 0}, "n is 0: it must be a whole number from 1 on"),
    ({"n": -5}, "n is -5: it must be a whole number from 1 on"),
    ({"n": 2.5}, "n is 2.5: it must be a whole number from 1 on"),
    ({"n": True}, "n is True: it must be a whole number from 1 on"),
    ({"n": "3"}, "n is '3': it must be a whole number from 1 on"),
    ({"user": ""}, "user must be a text or a whole number, not ''"),
    ({"user": None}, "user must be a text or a whole number, not None"),
    ({"user": "a\ud800"}, "user is not valid Unicode"),
    ({"exclude": "17"}, "exclude must be a list of items, not '17'"),
    ({"exclude": 17}, "exclude must be a list of items, not 17"),
    ({"exclude": [None]}, "exclude must be a text or a whole number, not None"),
], ids=str)  # fmt: skip
def test_bad_arguments_are_refused(url, arguments, reason):
    with open_keeper(make_model(), url) as keeper:
        for place in (keeper, keeper._reader):
            with pytest.raises((ConfigError, DataError), match=reason):
                place.recommend(**{"user": "u", **arguments})
            if "user" in arguments:
                with pytest.raises(DataError, match=reason):
                    place.sketch(arguments["user"])


def test_excluded_items_are_left_out_and_the_others_keep_their_order(url):
    with open_keeper(make_model(loss="softmax"), url) as keeper:
        keeper.observe("u", "1")
        ranked = keeper.recommend("u", 12)
        excluded = [ranked[0][0], int(ranked[3][0]), "not an item of the model"]
        rest = [pair for place, pair in enumerate(ranked) if place not in (0, 3)]
        assert keeper.recommend("u", 12, exclude=excluded) == rest
        assert keeper.recommend("u", np.int64(2), exclude=iter(excluded)) == rest[:2]
        assert keeper.recommend("u", 12) == ranked


def test_it_is_public():
    assert dips.open_reader is open_reader
