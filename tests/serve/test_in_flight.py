"""Commits in flight while the next batch is applied: results are the same, even on failure."""

from __future__ import annotations

import threading

import pytest

from dips.serve.batches import EventBatch
from dips.serve.keeper import Keeper, open_keeper
from dips.serve.stores.base import StoreError, Table
from dips.serve.stores.registry import open_store
from tests.serve.crashing import write_log
from tests.serve.failing import Failing
from tests.serve.fold import fold, state_of
from tests.serve.models import make_model

SIZE, BATCH, USERS = 3, 5, [f"user {n}" for n in range(12)]


def log_of(length):
    """Return events with ids, sequence numbers, duplicates, and some new items."""
    log = [entry for entry in write_log(length, seed=2) if "user" in entry]
    return [{**e, "item": f"new {n // 9}"} if n % 9 == 0 else e for n, e in enumerate(log)]


def contents(store):
    return {table: dict(store.scan(table)) for table in Table}


def memory(keeper):
    counters, window = {**keeper.stats(), "journal": None}, keeper._window.position
    return counters, window, list(keeper._vocabulary.names), keeper._model_items.index.tolist()


@pytest.mark.parametrize("turn", [1, 2, 4, 5])
def test_a_failed_commit_leaves_nothing(durable, turn):
    """Memory and store are as before its batch; later batches are not applied either."""
    trained, log = make_model("frequent", SIZE), log_of(5 * BATCH + 3)
    log, done = log[: 5 * BATCH], (turn - 1) * BATCH
    with open_keeper(trained, "memory:", batch=BATCH) as keeper:
        keeper.observe_many(log[:done])
        expected = memory(keeper)
        keeper.observe_many(log[done:])
        whole = memory(keeper)[1:]
    store = Failing(open_store(durable))
    with open_keeper(trained, store, batch=BATCH) as keeper:
        store.fail([turn])
        with pytest.raises(StoreError, match="cannot be written"):
            keeper.observe_many(log)
        assert memory(keeper) == expected
        assert state_of(keeper, USERS) == fold(log[:done], "frequent", SIZE)
        keeper.observe_many(log)
        assert state_of(keeper, USERS) == fold(log, "frequent", SIZE)
        assert memory(keeper)[1:] == whole


def test_stores_are_equal_with_and_without_overlapping_commits(durable):
    trained, log, found = make_model("learned", SIZE), log_of(60), []
    for url in ("memory:", durable):
        store = open_store(url)
        keeper = Keeper(trained, store, batch=BATCH)
        if url == durable:
            keeper.observe_many(log)
        else:
            for start in range(0, len(log), BATCH):
                keeper.observe_many(log[start : start + BATCH])
        found.append(contents(store))
        keeper.close()
    assert found[0] == found[1]


def test_other_calls_between_batches_are_applied_in_order(url):
    """Erasures, swaps and further events happen while the source of events is read."""
    log = log_of(60)
    early = {event["user"] for event in log[:BATCH]}  # of a commit in flight
    erased = next(e["user"] for e in log[BATCH : 2 * BATCH] if e["user"] in early)
    between = {12: {"forget": erased}, 27: {"swap": "last"}, 40: log[2], 41: log[41]}
    entries = []
    with open_keeper(make_model("frequent", SIZE), url, batch=BATCH) as keeper:

        def source():
            """Batches are read one ahead: a call in between is applied before the last two."""
            for place, event in enumerate(log):
                if place in between:
                    at = max(0, (place - place % BATCH) - BATCH)
                    entries.append((at, between[place]))
                    act(keeper, between[place])
                    assert keeper.sketch("nobody").seen == 0
                yield event

        keeper.observe_many(source())
        ordered = list(log)
        for at, entry in reversed(entries):
            ordered.insert(at, entry)
        assert state_of(keeper, USERS) == fold(ordered, "frequent", SIZE)


def act(keeper, entry):
    if "forget" in entry:
        keeper.forget(entry["forget"])
    elif "swap" in entry:
        keeper.swap(make_model(entry["swap"], SIZE))
    else:
        keeper.observe_many([entry])


def test_several_threads_observe_at_once(durable):
    """Each thread's events are applied once, in their order."""
    logs = [
        [
            {"user": f"{name} {n % 3}", "item": "1", "rating": 3, "time": n, "seq": n}
            for n in range(90)
        ]
        for name in ("one", "two", "three")
    ]
    with open_keeper(make_model("last", SIZE), durable, batch=4) as keeper:
        workers = [threading.Thread(target=keeper.observe_many, args=(log,)) for log in logs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for log in logs:
            assert state_of(keeper, {e["user"] for e in log}) == fold(log, "last", SIZE)
        assert keeper.stats()["applied"] == 270


def test_events_before_an_error_of_the_source_are_durable(durable):
    def source():
        for n in range(12):
            yield {"user": "u", "item": "1", "rating": 3, "time": n}
        raise OSError("gone")

    keeper = open_keeper(make_model("last", SIZE), durable, batch=2)
    with pytest.raises(OSError, match="gone"):
        keeper.observe_many(source())
    keeper.close()
    with open_keeper(make_model("last", SIZE), durable) as keeper:
        assert keeper.sketch("u").seen == 12


def events(count):
    return [{"user": "u", "item": "1", "rating": 3, "time": n} for n in range(count)]


def test_results_are_yielded_before_an_error_of_the_source(url):
    def source():
        for count in (1, 2, 3):
            yield EventBatch(events(count))
        raise OSError("gone")

    with open_keeper(make_model("last", SIZE), url) as keeper:
        results = keeper.process(source())
        assert [next(results).applied for _ in range(3)] == [1, 2, 3]
        with pytest.raises(OSError, match="gone"):
            next(results)
        assert keeper.stats()["applied"] == 6


def test_the_result_before_a_batch_that_cannot_be_loaded_is_yielded(url):
    store = open_store(url)
    with open_keeper(make_model("last", SIZE), store) as keeper:
        get = store.get

        def failing(table, keys):
            if b"bad" in keys:
                raise StoreError("cannot be read")
            return get(table, keys)

        store.get = failing
        bad = EventBatch([{"user": "bad", "item": "1", "rating": 3}])
        results = keeper.process(
            [EventBatch(events(1)), EventBatch(events(2)), bad, EventBatch(events(3))]
        )
        assert [next(results).applied for _ in range(2)] == [1, 2]
        with pytest.raises(StoreError, match="cannot be read"):
            next(results)
        assert keeper.stats()["applied"] == 3
