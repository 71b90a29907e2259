"""What is shown is what evaluation ranks first; what was struck out is not shown."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dips.data.interactions import from_arrays
from dips.evaluation import progressive
from dips.policy.registry import make_policy
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.serve.keeper import open_keeper
from dips.stream.users import Columns, make_stream
from tests.serve.models import make_model

ITEMS, PAST = 12, [5, 2, 9, 2, 7]
KINDS = pytest.mark.parametrize(
    ("form", "more"), [("dot", {"recency_decay": True, "separate_input": True}), ("mlp", {})]
)


def _ranks(trained) -> list[float]:
    """The rank of every item after the past: of as many users, who then meet one each."""
    steps = len(PAST) + 1
    item = np.array([step for last in range(ITEMS) for step in (*PAST, last)])
    user = np.repeat(np.arange(ITEMS), steps)
    data = from_arrays(user, item, None, np.tile(np.arange(steps), ITEMS))
    data = replace(data, warmup=np.full(ITEMS, len(PAST)))
    stream = make_stream([data], Columns.of(data))
    trace = rollout(
        stream, make_policy("last", size=trained.size), size=trained.size, schedule=trained.schedule,
        keys=stream.keys([0]),
    )  # fmt: skip
    return progressive.predict(
        StackedRecommenders.of([trained.recommender]), trace, 0
    ).output.tolist()


def _shown(trained, n: int) -> list[tuple[str, float]]:
    keeper = open_keeper(trained, "memory:")
    keeper.observe_many({"user": "u", "item": str(item)} for item in PAST)
    return keeper.recommend("u", n)


@KINDS
@pytest.mark.parametrize("looped", [True, False])
def test_the_order_is_that_of_evaluation(form, more, looped, monkeypatch):
    if not looped:
        monkeypatch.setattr(progressive, "is_looped", lambda model: False)
    trained = make_model(
        "last", 4, loss="softmax", form=form, items=ITEMS, filter_sketch=True, **more
    )
    ranks, shown = _ranks(trained), _shown(trained, ITEMS)
    assert [ranks[int(item)] for item, _ in shown] == list(range(1, ITEMS - 2))
    assert {ranks[item] for item in {2, 7, 9}} == {ITEMS - 1}  # in the middle of the last three
    assert {int(item) for item, _ in shown} == set(range(ITEMS)) - {2, 7, 9}
    assert all(math.isfinite(score) for _, score in shown)


@KINDS
def test_without_striking_everything_may_be_shown(form, more):
    trained = make_model("last", 4, loss="softmax", form=form, items=ITEMS, **more)
    ranks, shown = _ranks(trained), _shown(trained, ITEMS)
    assert [ranks[int(item)] for item, _ in shown] == list(range(1, ITEMS + 1))
    assert _shown(trained, 3) == shown[:3]


def test_who_has_everything_is_shown_nothing():
    trained = make_model("last", 3, loss="softmax", items=2, filter_sketch=True)
    keeper = open_keeper(trained, "memory:")
    keeper.observe_many({"user": "u", "item": item} for item in "01")
    assert keeper.recommend("u", 5) == []
    assert len(keeper.recommend("nobody", 5)) == 2


def test_an_item_that_the_run_does_not_know_strikes_nothing_out():
    trained = make_model("last", 4, loss="softmax", items=ITEMS, filter_sketch=True)
    keeper = open_keeper(trained, "memory:")
    keeper.observe_many({"user": "u", "item": item} for item in ("3", "never met before"))
    assert {item for item, _ in keeper.recommend("u", ITEMS)} == set(map(str, range(ITEMS))) - {"3"}


def test_scores_that_are_no_numbers_do_not_look_like_nothing_left():
    trained = make_model("last", 4, loss="softmax", items=ITEMS, filter_sketch=True)
    trained.recommender.user_prior.data.fill_(math.nan)
    assert all(math.isnan(score) for _, score in open_keeper(trained, "memory:").recommend("u", 3))
    assert len(open_keeper(trained, "memory:").recommend("u", 3)) == 3
