"""The keeper against the rollout, `dips sketch` and the fold, for any batching."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import dips
from dips.errors import ConfigError, RunError
from dips.evaluation.scoring import roll_out
from dips.recommender.base import Evidence
from dips.serve.batches import EventBatch
from dips.serve.events import EventError
from dips.serve.keeper import open_keeper
from dips.serve.stores.base import Table
from dips.serve.stores.registry import open_store
from dips.stream.users import EventColumns, make_stream
from dips.studies.sketches import sketch_columns
from dips.testing import random_world
from tests.serve.fold import fold, state_of
from tests.serve.models import events_of, make_model

LENGTHS = [9, 3, 16, 1, 6, 2]
LINEARISED = {"loss": "softmax", "inner_loss": "linearised"}
RUNS = [
    ("last", (1,), {}),
    ("reservoir", (3,), {"seed": 4}),
    ("mix:2", (2, 1, 3), {}),
    ("last-distinct", (2,), {}),
    ("frequent", (1,), {"choice": "sampled"}),
    ("reservoir", (3, 1), {"choice": "sampled", "seed": 2}),
    ("hardest", (1,), {}),
    ("hardest:5", (2,), {"loss": "softmax"}),
    ("influence", (2,), {}),
    ("last-top:1", (1,), {"loss": "softmax", "recency_decay": True, "tie_embeddings": False}),
    ("last-top:2", (2, 1), {}),
    ("learned", (1,), {}),
    ("learned", (2, 1), {"loss": "softmax"}),
    ("learned", (1,), {"loss": "softmax", "residual": False}),
    (
        "learned",
        (1,),
        {
            "loss": "softmax",
            "predicted_score": True,
            "recency_decay": True,
            "tie_embeddings": False,
        },
    ),
    ("learned", (2, 1), {"loss": "softmax", "predicted_score": True}),
    (
        "learned",
        (1,),
        {"loss": "softmax", "repeat_feature": True, "recency_decay": True, "tie_embeddings": False},
    ),
    ("hardest", (2,), {"loss": "softmax", "repeat_feature": True, "recency_decay": True}),
    ("learned", (1,), {**LINEARISED, "predicted_score": True, "recency_decay": True}),
    ("learned", (2, 1), {**LINEARISED, "predicted_score": True, "negatives": 5}),
    ("last-top:1", (1,), {**LINEARISED, "tie_embeddings": False}),
    ("last-top:1", (2,), {**LINEARISED, "repeat_feature": True, "recency_decay": True}),
    ("hardest", (1,), {**LINEARISED, "repeat_feature": True}),
    ("influence", (2,), {**LINEARISED, "recency_decay": True}),
    ("learned", (1,), {"loss": "cce", "form": "mlp"}),
    ("dips", (1,), {}),
    ("dips@1", (3,), {"loss": "softmax"}),
]


def batched(events, sizes):
    """Split events into batches of these sizes, in turn."""
    place, turn = 0, 0
    while place < len(events):
        size = sizes[turn % len(sizes)]
        yield events[place : place + size]
        place, turn = place + size, turn + 1


@pytest.mark.parametrize("sizes", [[1], [1000], [3, 1, 20]], ids=str)
@pytest.mark.parametrize(("policy", "periods", "more"), RUNS, ids=str)
def test_the_keeper_equals_the_rollout(policy, periods, more, sizes):
    """Every field of every sketch equals that of the rollout over the same histories."""
    trained = make_model(policy, 3, periods, **more)
    data = random_world(LENGTHS, items=12, explicit=trained.explicit)
    assert list(data.item_ids) == list(trained.item_ids)
    keeper = open_keeper(trained, "memory:")
    for batch in batched(events_of(data), sizes):
        assert not keeper.observe_many(batch).refused
    columns = EventColumns.of(data)
    _, trace = roll_out(trained, data, columns)
    stream = make_stream([data], columns)
    for row, user in enumerate(stream.user[0].tolist()):
        found = keeper.sketch(data.user_id(user))
        assert found.seen == data.lengths[user]
        present = trace.final.present[row]
        expected = [field[row][present].tolist() for field in trace.final[:5]]
        entries = [(e.position, int(e.item), e.rating, e.time, e.repeats) for e in found.entries]
        assert entries == list(zip(*expected, strict=True))


@pytest.mark.parametrize("policy", ["reservoir", "learned"])
def test_the_keeper_equals_the_sketch_command(policy, durable):
    trained = make_model(policy, 4, (2,))
    data = random_world(LENGTHS, items=12)
    with open_keeper(trained, durable, batch=5) as keeper:
        keeper.observe_many(events_of(data))
        table = sketch_columns(trained, data)
        expected = {}
        for name in ("user", "position", "item", "rating"):
            for place, value in enumerate(table[name]):
                expected.setdefault(place, []).append(value)
        for user in range(data.users):
            name = data.user_id(user)
            rows = [tuple(row[1:]) for row in expected.values() if row[0] == name]
            found = keeper.sketch(name).entries
            assert [(e.position, e.item, np.float32(e.rating)) for e in found] == rows


def contents(store):
    return {table: list(store.scan(table)) for table in Table}


@pytest.mark.parametrize("policy", ["reservoir", "learned"])
def test_the_same_log_gives_the_same_bytes(policy):
    """Stores are equal for any batching and with restarts in between."""
    trained = make_model(policy, 3, (2,))
    log = events_of(random_world(LENGTHS, items=12))
    for place, event in enumerate(log):
        event["item"] = event["item"] if place % 5 else f"new {place % 3}"
        event["id"] = str(place // 2)  # half of some users' events are duplicates
    stores = []
    for sizes in ([1000], [1], [4, 9]):
        store = open_store("memory:")
        for batch in batched(log, sizes):
            open_keeper(trained, store).observe_many(batch)  # a new keeper for every batch
        stores.append(contents(store))
    chunks = [
        "".join(v.decode() for k, v in found[Table.METADATA] if k.startswith(b"items/"))
        for found in stores
    ]
    for found in stores:  # each batch with new items writes one row of the vocabulary
        found[Table.METADATA] = [
            row for row in found[Table.METADATA] if not row[0].startswith(b"items/")
        ]
        found[Table.METADATA] = [row for row in found[Table.METADATA] if row[0] != b"counters"]
    assert stores[0] == stores[1] == stores[2]
    assert len({chunk.replace("][", ", ") for chunk in chunks}) == 1


@pytest.mark.parametrize("policy", ["last", "reservoir", "frequent"])
def test_the_keeper_equals_the_fold(policy, url):
    log = events_of(random_world([12, 30, 7], items=6, seed=3))
    log = [{**event, "seq": place} for place, event in enumerate(log)]
    log = log[:20] + log[5:] + log[30:] + [{**log[0], "seq": 10**9}]
    with open_keeper(make_model(policy, 3, (2, 1)), url, batch=6) as keeper:
        result = keeper.observe_many(log)
        expected = fold(log, policy, 3, (2, 1))
        assert state_of(keeper, ["0", "1", "2", "nobody"]) == expected
        assert result.applied == sum(user.seen for user in expected.values())
        assert result.repeated == len(log) - result.applied


def test_a_user_without_a_record_has_an_empty_sketch_and_recommendations(url):
    with open_keeper(make_model("last", 2), url) as keeper:
        nobody = keeper.sketch("nobody")
        assert (nobody.seen, nobody.policy_version) == (0, 0)
        assert (nobody.last_seq, nobody.entries) == (None, ())
        first = keeper.recommend("nobody", 3)
        assert len(first) == 3
        assert [score for _, score in first] == sorted((s for _, s in first), reverse=True)
        keeper.observe("u", "3", 1.0)
        assert keeper.recommend("u", 12) != keeper.recommend("nobody", 12)
        assert {item for item, _ in keeper.recommend("u", 99)} == {str(n) for n in range(12)}


def test_recommend_uses_repeat_counts_and_ages():
    """As evaluation does for the same sketch."""
    trained = make_model("reservoir", 3, loss="softmax", repeat_feature=True, recency_decay=True)
    data = random_world([40], items=12, explicit=False)
    keeper = open_keeper(trained, "memory:")
    keeper.observe_many(events_of(data))
    kept = keeper.sketch("0").entries
    age = torch.tensor([[39.0 - entry.position for entry in kept]])
    item, weight = torch.tensor([[int(entry.item) for entry in kept]]), torch.ones(1, 3)
    repeats = torch.tensor([[float(entry.repeats) for entry in kept]])
    assert repeats.max() > 1
    evidence = Evidence(item, weight, weight, torch.tensor([3]), age, repeats)
    scores = trained.recommender.predict_all(trained.recommender.read(evidence))[0]
    expected = {str(number): score for number, score in enumerate(scores.tolist())}
    assert dict(keeper.recommend("0", 12)) == pytest.approx(expected, abs=1e-5)


def test_forget_leaves_a_tombstone(url):
    with open_keeper(make_model("last", 3), url) as keeper:
        log = [{"user": "u", "item": "1", "rating": 3, "seq": n} for n in range(5)]
        keeper.observe_many(log)
        assert keeper.forget("u")
        assert not keeper.forget("u")
        assert keeper.sketch("u").seen == 0
        assert keeper.observe_many(log).forgotten == 5  # a replay is not applied
        assert not keeper.observe("u", "1", 3, id="x")
        assert not keeper.observe("u", "1", 3)
        assert keeper.observe("u", "2", 4, seq=5)
        assert keeper.sketch("u").items == ["2"]
        assert keeper.observe_many(log).repeated == 5
        assert keeper.stats()["users"] == 1
        keeper.forget("u")
        keeper.readmit("u")
        assert keeper.observe("u", "1", 3)


def test_offsets_of_sources_are_committed_with_the_events(durable):
    with open_keeper(make_model(), durable, batch=2) as keeper:
        log = [{"user": "u", "item": "1", "rating": 3}] * 5
        assert [result.applied for result in keeper.process([EventBatch(log, {"file": 5})])] == [5]
        assert [result.applied for result in keeper.process([EventBatch([], {"other": 7})])] == [0]
    with open_keeper(make_model(), durable) as keeper:
        assert (keeper.offset("file"), keeper.offset("other"), keeper.offset("none")) == (5, 7, 0)
        assert keeper.stats()["applied"] == 5


def test_invalid_events_are_reported_and_others_are_applied(url):
    with open_keeper(make_model(), url) as keeper:
        good = {"user": "u", "item": "1", "rating": 3}
        result = keeper.observe_many([good, {"user": "u"}, [], {**good, "rating": 6}, good])
        assert result.applied == 2
        assert [reason.split(" ")[0] for _, reason in result.refused] == ["item", "an", "rating"]
        with pytest.raises(EventError, match="rating is missing, and the run predicts ratings"):
            keeper.observe("u", "1")
        stats = keeper.stats()
        assert (stats["applied"], stats["users"], stats["policy"]) == (2, 1, "last")
        assert stats["refused"] == 4


def test_threads_can_share_a_keeper(durable):
    with open_keeper(make_model("last", 3), durable) as keeper:

        def work(name: str) -> None:
            for place in range(20):
                keeper.observe(name, str(place % 12), 3, place, seq=place)

        workers = [threading.Thread(target=work, args=(f"user {n}",)) for n in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for sketch in keeper.sketches([f"user {n}" for n in range(4)]):
            assert [entry.time for entry in sketch.entries] == [17, 18, 19]


def test_invalid_settings_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="the policy 'all' keeps everything"):
        open_keeper(make_model("all"), "memory:")
    with pytest.raises(RunError, match="is not a finished run"):
        dips.open_keeper(tmp_path, "memory:")
    with pytest.raises(ConfigError, match="batch is 0"):
        open_keeper(make_model(), "memory:", batch=0)


def test_a_saved_model_has_the_same_version(tmp_path):
    trained = make_model("learned")
    trained.save(tmp_path)
    store = open_store("memory:")
    assert open_keeper(trained, store).version == dips.open_keeper(tmp_path, store).version == 1
    assert open_keeper(make_model("learned", seed=1), store).version == 2


def test_open_keeper_loads_no_training_code():
    code = "import json, sys, dips; dips.open_keeper; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "dips.serve.keeper" in loaded
    assert not {"polars", "typer", "rich", "matplotlib"} & loaded
    parts = ("training", "credit", "evaluation", "report", "api")
    assert not [name for name in loaded if name.startswith(tuple(f"dips.{p}" for p in parts))]
