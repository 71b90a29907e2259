"""Shadow evaluation: another model decides, and changes nothing."""

from __future__ import annotations

from dips.serve.keeper import open_keeper
from dips.testing import random_world
from tests.serve.models import events_of, make_model

LOG = events_of(random_world([9, 14, 5], items=12))


def test_a_shadow_changes_nothing_and_counts_differences():
    keeper, plain = (open_keeper(make_model("last", 3), "memory:") for _ in range(2))
    same = keeper.shadow(make_model("last", 3, seed=5))
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
    plain.observe_many(LOG[:12])
    plain.observe_many([{**event, "item": f"new {n % 4}"} for n, event in enumerate(LOG[12:])])
    assert [keeper.sketch(u) for u in "012"] == [plain.sketch(u) for u in "012"]
