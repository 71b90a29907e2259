"""Duplicates: by event id within the window, by sequence number for ever."""

from __future__ import annotations

import pytest

from dips.errors import ConfigError
from dips.serve.deduplication import MAX_SEQ_JUMP
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


def test_ids_do_not_collide_whatever_their_characters():
    keeper = open_keeper(make_model("last", 8), "memory:")
    pairs = [("a\0b", "c"), ("a", "b\0c"), ("1 a", "b"), ("a", " b"), ("a", "b"), ("ab", "1")]
    pairs += [("a b", "c"), ("a", "b c")]
    assert all(keeper.observe(user, "1", 3, id=name) for user, name in pairs)
    assert not any(keeper.observe(user, "1", 3, id=name) for user, name in pairs)


@pytest.mark.parametrize(
    ("last", "seq", "applied"),
    [
        (None, 2**62 - 2, True),  # a first number may be anything
        (12, 13 + MAX_SEQ_JUMP, True),
        (12, 14 + MAX_SEQ_JUMP, False),
        (12, 2**62 - 1, False),
        (10**18, 2 * 10**18 + 1, True),  # nanoseconds
        (10**18, 2 * 10**18 + 3, False),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_an_absurd_sequence_number_does_not_block_a_user(last, seq, applied, together):
    """It is refused, so the events after it are not taken for duplicates."""
    keeper = open_keeper(make_model("last", 8), "memory:")
    log = [{"user": "u", "item": "1", "rating": 3, "seq": n} for n in (last, seq) if n is not None]
    log += [{"user": "u", "item": "2", "rating": 3, "seq": seq + 1 if applied else 14}]
    if together:
        results = [keeper.observe_many(log)]
    else:
        results = [keeper.observe_many([event]) for event in log]
    refused = [each.reason for result in results for each in result.refused]
    if applied:
        assert refused == []
    elif last == 12:
        (reason,) = refused
        assert reason.startswith(f"seq {seq} is too far above the last one of user 'u', 12: send")
        assert keeper.sketch("u").last_seq == 14
    assert len(refused) == (not applied)


def test_a_blocked_user_is_readmitted(url):
    with open_keeper(make_model("last", 8), url) as keeper:
        keeper.observe("u", "1", 3, seq=2**61)
        before = keeper.sketch("u").entries
        assert not keeper.observe("u", "2", 3, seq=5)
        keeper.readmit("u", last_seq=5)
        assert (keeper.sketch("u").entries, keeper.sketch("u").last_seq) == (before, 5)
        assert [keeper.observe("u", "2", 3, seq=seq) for seq in (5, 6)] == [False, True]
        keeper.readmit("u")
        assert keeper.sketch("u").last_seq is None
        assert [keeper.observe("u", "2", 3, seq=seq) for seq in (0, 0)] == [True, False]
        assert keeper.stats()["users"] == 1


def test_a_user_that_was_erased_is_readmitted(url):
    with open_keeper(make_model("last", 8), url) as keeper:
        keeper.observe("u", "1", 3, seq=9)
        keeper.forget("u")
        assert not keeper.observe("u", "1", 3, seq=8)
        keeper.readmit("u", last_seq=6)
        assert [keeper.observe("u", "1", 3, seq=seq) for seq in (6, 7)] == [False, True]
        keeper.forget("u")
        keeper.readmit("u")
        assert keeper.observe("u", "1", 3)
