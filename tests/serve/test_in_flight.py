"""Commits on their way while the next batch is decided: nobody can tell, even when they fail."""

from __future__ import annotations

import threading

import pytest

from dips.serve.batches import Batch
from dips.serve.keeper import Keeper, open_keeper
from dips.serve.stores.base import StoreError, Table, open_store
from tests.serve.models import make_model
from tests.serve.crashing import write_log
from tests.serve.failing import Failing
from tests.serve.fold import fold, told

SIZE, BATCH, USERS = 3, 5, [f"user {n}" for n in range(12)]


def log_of(length):
    """Ids, sequences, repeats, and items that are new now and then."""
    log = [entry for entry in write_log(length, seed=2) if "user" in entry]
    return [{**e, "item": f"new {n // 9}"} if n % 9 == 0 else e for n, e in enumerate(log)]


def contents(store):
    return {table: dict(store.scan(table)) for table in Table}


def memory(keeper):
    counts, window = {**keeper.stats(), "journal": None}, keeper._window.place
    return counts, window, list(keeper._items.names), keeper._numbering.number.tolist()


@pytest.mark.parametrize("turn", [1, 2, 4, 5])
def test_a_commit_that_fails_on_its_way_leaves_nothing(lasting, turn):
    """Memory and store are as if its batch, and those after it, had never been."""
    trained, log = make_model("frequent", SIZE), log_of(5 * BATCH + 3)
    log, done = log[: 5 * BATCH], (turn - 1) * BATCH
    with open_keeper(trained, "memory:", batch=BATCH) as keeper:
        keeper.observe_many(log[:done])
        wanted = memory(keeper)
        keeper.observe_many(log[done:])
        whole = memory(keeper)[1:]
    store = Failing(open_store(lasting))
    with open_keeper(trained, store, batch=BATCH) as keeper:
        store.fail([turn])
        with pytest.raises(StoreError, match="cannot be written"):
            keeper.observe_many(log)
        assert memory(keeper) == wanted
        assert told(keeper, USERS) == fold(log[:done], "frequent", SIZE)
        keeper.observe_many(log)
        assert told(keeper, USERS) == fold(log, "frequent", SIZE)
        assert memory(keeper)[1:] == whole


def test_whole_stores_are_the_same_with_and_without_overlap(lasting):
    trained, log, found = make_model("learned", SIZE), log_of(60), []
    for url in ("memory:", lasting):
        store = open_store(url)
        keeper = Keeper(trained, store, batch=BATCH)
        if url == lasting:
            keeper.observe_many(log)
        else:
            for start in range(0, len(log), BATCH):
                keeper.observe_many(log[start : start + BATCH])
        found.append(contents(store))
        keeper.close()
    assert found[0] == found[1]


def test_others_may_come_in_between(url):
    """Erasures, swaps and further events while a source is read take their place in the order."""
    log = log_of(60)
    early = {event["user"] for event in log[:BATCH]}  # written when this one is forgotten, and read
    gone = next(e["user"] for e in log[BATCH : 2 * BATCH] if e["user"] in early)
    between = {12: {"forget": gone}, 27: {"swap": "last"}, 40: log[2], 41: log[41]}
    entries = []
    with open_keeper(make_model("frequent", SIZE), url, batch=BATCH) as keeper:

        def source():
            """Pieces are read one ahead: what comes in between is applied before the last two."""
            for place, event in enumerate(log):
                if place in between:
                    quantized = max(0, (place - place % BATCH) - BATCH)
                    entries.append((quantized, between[place]))
                    act(keeper, between[place])
                    assert keeper.sketch("nobody").seen == 0
                yield event

        keeper.observe_many(source())
        plain = list(log)
        for quantized, entry in reversed(entries):
            plain.insert(quantized, entry)
        assert told(keeper, USERS) == fold(plain, "frequent", SIZE)


def act(keeper, entry):
    if "forget" in entry:
        keeper.forget(entry["forget"])
    elif "swap" in entry:
        keeper.swap(make_model(entry["swap"], SIZE))
    else:
        keeper.observe_many([entry])


def test_two_sources_at_once(lasting):
    """Each thread's events are applied once, in their order."""
    logs = [
        [
            {"user": f"{who} {n % 3}", "item": "1", "rating": 3, "time": n, "seq": n}
            for n in range(90)
        ]
        for who in ("one", "two", "three")
    ]
    with open_keeper(make_model("last", SIZE), lasting, batch=4) as keeper:
        workers = [threading.Thread(target=keeper.observe_many, args=(log,)) for log in logs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for log in logs:
            assert told(keeper, {e["user"] for e in log}) == fold(log, "last", SIZE)
        assert keeper.stats()["applied"] == 270


def test_a_source_that_fails_leaves_what_came_before(lasting):
    def source():
        for n in range(12):
            yield {"user": "u", "item": "1", "rating": 3, "time": n}
        raise OSError("gone")

    keeper = open_keeper(make_model("last", SIZE), lasting, batch=2)
    with pytest.raises(OSError, match="gone"):
        keeper.observe_many(source())
    keeper.close()
    with open_keeper(make_model("last", SIZE), lasting) as keeper:
        assert keeper.sketch("u").seen == 12


def events(count):
    return [{"user": "u", "item": "1", "rating": 3, "time": n} for n in range(count)]


def test_a_source_that_fails_has_all_its_batches_told(url):
    def source():
        for count in (1, 2, 3):
            yield Batch(events(count))
        raise OSError("gone")

    with open_keeper(make_model("last", SIZE), url) as keeper:
        told = keeper.follow(source())
        assert [next(told).applied for _ in range(3)] == [1, 2, 3]
        with pytest.raises(OSError, match="gone"):
            next(told)
        assert keeper.stats()["applied"] == 6


def test_a_batch_that_cannot_be_read_is_told_of_after_the_one_before(url):
    store = open_store(url)
    with open_keeper(make_model("last", SIZE), store) as keeper:
        get = store.get

        def failing(table, keys):
            if b"bad" in keys:
                raise StoreError("cannot be read")
            return get(table, keys)

        store.get = failing
        bad = Batch([{"user": "bad", "item": "1", "rating": 3}])
        told = keeper.follow([Batch(events(1)), Batch(events(2)), bad, Batch(events(3))])
        assert [next(told).applied for _ in range(2)] == [1, 2]
        with pytest.raises(StoreError, match="cannot be read"):
            next(told)
        assert keeper.stats()["applied"] == 3
