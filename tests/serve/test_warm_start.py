"""Warm start: lists of last items become sketches, and an import can be repeated."""

from __future__ import annotations

from dips.serve.keeper import open_keeper
from dips.serve.warm_start import warm_start
from tests.serve.models import make_model

LISTS = [("alice", ["1", "2", "3", "4"]), ("bob", ["5"]), ("dora", list("1234567")), ("bob", ["6"])]


def lists():
    return [(user, [{"item": item} for item in items]) for user, items in LISTS]


def test_lists_become_sketches(url):
    with open_keeper(make_model("last", 3), url, batch=5) as keeper:
        keeper.observe("carl", "7", 3)
        result = warm_start(keeper, [*lists(), ("carl", [{"item": "1"}])], rating=3.0)
        assert (result.applied, result.repeated, result.refused) == (10, 2, [])
        assert keeper.sketch("alice").items == ["2", "3", "4"]
        assert keeper.sketch("dora").items == ["5", "6", "7"]
        assert keeper.sketch("dora").seen == 5  # no more than fits into one commit
        assert keeper.sketch("bob").items == ["5"]
        assert keeper.sketch("carl").items == ["7"]
        again = warm_start(keeper, lists(), rating=3.0)
        assert (again.applied, again.repeated) == (0, 11)


def test_entries_without_a_rating_are_refused():
    keeper = open_keeper(make_model("last", 3), "memory:")
    result = warm_start(keeper, lists())
    assert (result.applied, len(result.refused)) == (0, 13)


def test_an_invalid_user_is_refused_alone():
    keeper = open_keeper(make_model("last", 3), "memory:")
    bad = ["", None, "\ud800", "x" * 513, 1.5]
    found = [("u", [{"item": "1"}]), *((user, [{"item": "1"}] * 2) for user in bad), (7, [])]
    result = warm_start(keeper, [*found, (7, [{"item": "2"}])], rating=3)
    assert (result.applied, len(result.refused)) == (2, 2 * len(bad))
    assert result.refused[0].reason == "user must be a text or a whole number, not ''"
    assert keeper.sketch("7").items == ["2"]


def test_an_entry_whose_rating_is_null_has_the_default():
    keeper = open_keeper(make_model("last", 3), "memory:")
    warm_start(
        keeper, [("u", [{"item": "1", "rating": None}, {"item": "2", "rating": 5}])], rating=3
    )
    assert [entry.rating for entry in keeper.sketch("u").entries] == [3.0, 5.0]
