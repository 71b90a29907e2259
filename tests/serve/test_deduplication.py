"""Duplicates: by event id within the window, by sequence number for ever."""

from __future__ import annotations

import pytest

from dips.errors import ConfigError
from dips.serve.keeper import open_keeper
from dips.serve.stores.base import Table
from dips.serve.stores.registry import open_store
from tests.serve.fold import fold, state_of
from tests.serve.models import make_model


def test_an_event_id_is_applied_once_within_the_window():
    store = open_store("memory:")
    keeper = open_keeper(make_model("last", 8), store, batch=2, id_bytes=64 * 4)
    ids = ["a", "b", "a", "c", "d", "a", "e", "a", "b", "b"]
    log = [{"user": "u", "item": "1", "rating": 3, "time": n, "id": i} for n, i in enumerate(ids)]
    result = keeper.observe_many(log)
    # "a" is a duplicate until four newer ids have arrived
    assert [e.time for e in keeper.sketch("u").entries] == [0, 1, 3, 4, 6, 7, 8]
    assert (result.applied, result.repeated) == (7, 3)
    assert state_of(keeper, ["u"]) == fold(log, "last", 8, window=4)
    assert len(list(store.scan(Table.EVENT_IDS))) == len(list(store.scan(Table.ID_ORDER))) == 4
    again = open_keeper(make_model("last", 8), store, batch=1, id_bytes=64 * 2)  # a smaller window
    assert not again.observe("u", "1", 3, 9, id="b")
    assert again.observe("u", "1", 3, 9, id="z")
    assert len(list(store.scan(Table.EVENT_IDS))) == len(list(store.scan(Table.ID_ORDER))) == 2
    with pytest.raises(ConfigError, match="batches of 1000 need 64000 at least"):
        open_keeper(make_model(), "memory:", id_bytes=1000)


def test_sequence_numbers_may_have_gaps_and_late_events_are_duplicates(url):
    with open_keeper(make_model("last", 8), url) as keeper:
        applied = [keeper.observe("u", "1", 3, seq=seq) for seq in (0, 0, 5, 4, 5, 6)]
        assert applied == [True, False, True, False, False, True]
        assert keeper.sketch("u").last_seq == 6
        assert keeper.observe("other", "1", 3, seq=2)  # sequence numbers belong to a user
        assert keeper.observe("u", "1", 3)  # without id and seq no duplicate is recognised
        assert keeper.sketch("u").seen == 4
