"""Swap of the model, resize of sketches, and side information of events."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import dips
from dips.data.interactions import EventColumn, from_arrays
from dips.errors import ConfigError
from dips.serve.keeper import open_keeper
from dips.serve.reader import open_reader
from dips.studies.sketches import sketch_columns
from dips.testing import random_world
from tests.serve.models import events_of, make_model

LOG = events_of(random_world([9, 14, 5], items=12))


def test_sketches_change_with_the_next_event_after_a_swap(url):
    """Sizes, schedules and vocabularies may differ."""
    small = make_model("last", 2)
    large = make_model("last", 4, items=20)
    with open_keeper(small, url) as keeper:
        for place in range(4):
            keeper.observe("u", str(place), 3, place)
        assert keeper.sketch("u").items == ["2", "3"]
        assert keeper.swap(large) == 2
        assert keeper.sketch("u").policy_version == 1
        for place in range(15, 19):
            keeper.observe("u", str(place), 3, place)
        assert keeper.sketch("u").items == ["15", "16", "17", "18"]
        assert keeper.sketch("u").policy_version == 2
        assert keeper.swap(small) == 1  # back again
        assert keeper.sketch("u").items == ["15", "16", "17", "18"]
        keeper.observe("u", "1", 3)
        assert keeper.sketch("u").items == ["18", "1"]
        assert keeper.sketch("u").seen == 9


def test_a_swap_keeps_waiting_interactions():
    keeper = open_keeper(make_model("last", 2, (4,)), "memory:")
    for place in range(5):
        keeper.observe("u", str(place), 3)
    assert len(keeper.sketch("u").waiting) == 3
    keeper.swap(make_model("last", 3, (2,)))
    keeper.observe("u", "7", 3)
    assert keeper.sketch("u").items == ["3", "4", "7"]
    assert keeper.sketch("u").waiting == ()


def test_swaps_during_a_stream_lose_no_events(durable):
    runs = [make_model("last", 3), make_model("learned", 3), make_model("last", 2)]
    with open_keeper(runs[0], durable, batch=4) as keeper:
        log = [
            {"user": f"user {n % 5}", "item": str(n % 12), "rating": 3, "time": n, "seq": n}
            for n in range(300)
        ]
        worker = threading.Thread(target=keeper.observe_many, args=(log,))
        worker.start()
        turns = 0
        while worker.is_alive():
            keeper.swap(runs[turns % 3])
            turns += 1
        worker.join()
        assert turns > 0
        found = keeper.sketches([f"user {n}" for n in range(5)])
        assert [sketch.seen for sketch in found] == [60] * 5
        assert all(len(sketch.entries) >= 2 for sketch in found)


def test_resize_makes_the_choice_of_the_next_refresh(url):
    """Of four random priorities the two highest stay; a larger size keeps all entries."""
    kept = open_keeper(make_model("reservoir", 4), url)
    kept.observe_many(LOG)
    before = {user: kept.sketch(user) for user in ("0", "1", "2")}
    kept.swap(make_model("reservoir", 2))
    assert kept.resize() == (3, {})
    assert kept.resize() == (0, {})
    fresh = open_keeper(make_model("reservoir", 2), "memory:")
    fresh.observe_many(LOG)
    for user, old in before.items():
        new = kept.sketch(user)
        assert set(new.items) <= set(old.items)
        expected = fresh.sketch(user).entries  # the sample is the same as from the start
        assert [e.position for e in new.entries] == [e.position for e in expected]
        assert new.policy_version == 2
    kept.swap(make_model("reservoir", 6))
    assert kept.resize() == (0, {})
    kept.observe("0", "5", 3)
    assert len(kept.sketch("0").entries) == 3
    kept.close()


def test_side_information_reaches_the_policy(durable):
    """Times and further columns of events, as in `dips sketch`."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(12), 14)
    data = from_arrays(
        user,
        rng.integers(0, 12, len(user)),
        rng.integers(1, 6, len(user)).astype(np.float32),
        np.arange(len(user)) * 50,
        side={
            "minutes": EventColumn.of(rng.random(len(user)) * 9),
            "device": EventColumn.of(rng.choice(["phone", "tv"], len(user))),
        },
    )
    train, valid, _ = data.split_users(seed=0)
    settings = {
        "epochs": 2,
        "dim": 4,
        "batch_size": 64,
        "device": "cpu",
        "size": 3,
        "baselines": (),
    }
    run = dips.train(train, valid, policy="learned", side=("time", "minutes", "device"), **settings)
    assert run.trained.policy_spec.name == "learned"
    log = events_of(data)
    minutes, device = data.side["minutes"], data.side["device"]
    for place, event in enumerate(log):  # one event every 50 seconds: ordered as the rows
        event["minutes"] = float(minutes.values[place])
        event["device"] = device.names[int(device.values[place])]
    with open_keeper(run.trained, durable, batch=7) as keeper:
        assert not keeper.observe_many(log).refused
        table = sketch_columns(run.trained, data)
        for number in range(data.users):
            name = data.user_id(number)
            mine = [entry.position for entry in keeper.sketch(name).entries]
            assert mine == table["position"][table["user"] == name].tolist()
        with pytest.raises(ConfigError, match="other side information than the store holds"):
            keeper.swap(make_model())
        with pytest.raises(ConfigError, match="other side information than the store holds"):
            open_reader(make_model(), durable)
        with open_reader(run.trained, durable) as reader:
            assert reader.recommend("0", 5) == keeper.recommend("0", 5)
