"""Recommendations: ranked as in evaluation, without filtered items."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dips.data.interactions import from_arrays
from dips.evaluation import progressive
from dips.policy.registry import make_policy
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.serve.keeper import open_keeper
from dips.serve.recommend import _highest
from dips.stream.users import EventColumns, make_stream
from tests.serve.models import make_model

ITEMS, HISTORY = 12, [5, 2, 9, 2, 7]
KINDS = pytest.mark.parametrize(
    ("form", "more"),
    [
        ("dot", {"recency_decay": True, "tie_embeddings": False}),
        ("dot", {"inner_loss": "linearised", "recency_decay": True, "tie_embeddings": False}),
        ("dot", {"inner_loss": "linearised", "repeat_feature": True}),
        ("mlp", {}),
    ],
)


def _ranks(trained) -> list[float]:
    """Return the rank of every item after HISTORY: one user per item, with that item next."""
    steps = len(HISTORY) + 1
    item = np.array([step for last in range(ITEMS) for step in (*HISTORY, last)])
    user = np.repeat(np.arange(ITEMS), steps)
    data = from_arrays(user, item, None, np.tile(np.arange(steps), ITEMS))
    data = replace(data, warmup=np.full(ITEMS, len(HISTORY)))
    stream = make_stream([data], EventColumns.of(data))
    trace = rollout(
        stream, make_policy("last", size=trained.size), size=trained.size,
        schedule=trained.schedule, keys=stream.keys([0]),
    )  # fmt: skip
    return progressive.predict(
        StackedRecommenders.of([trained.recommender]), trace, 0
    ).output.tolist()


def _recommended(trained, n: int) -> list[tuple[str, float]]:
    keeper = open_keeper(trained, "memory:")
    keeper.observe_many({"user": "u", "item": str(item)} for item in HISTORY)
    return keeper.recommend("u", n)


@KINDS
@pytest.mark.parametrize("looped", [True, False])
def test_items_are_ranked_as_in_evaluation(form, more, looped, monkeypatch):
    if not looped:
        monkeypatch.setattr(progressive, "has_compiled_softmax", lambda model: False)
    trained = make_model(
        "last", 4, loss="softmax", form=form, items=ITEMS, filter_sketch=True, **more
    )
    ranks, found = _ranks(trained), _recommended(trained, ITEMS)
    assert [ranks[int(item)] for item, _ in found] == list(range(1, ITEMS - 2))
    assert {ranks[item] for item in {2, 7, 9}} == {ITEMS - 1}
    assert {int(item) for item, _ in found} == set(range(ITEMS)) - {2, 7, 9}
    assert all(math.isfinite(score) for _, score in found)


def test_a_service_filters_the_sketch_of_a_run_with_filter_seen():
    """Evaluation filters the whole history; a service stores none of it but the sketch."""
    more = {"inner_loss": "linearised", "items": ITEMS}
    found = _recommended(make_model("last", 2, loss="softmax", filter_seen=True, **more), ITEMS)
    assert {int(item) for item, _ in found} == set(range(ITEMS)) - {2, 7}
    assert found == _recommended(
        make_model("last", 2, loss="softmax", filter_sketch=True, **more), ITEMS
    )


@KINDS
def test_without_a_filter_all_items_are_recommended(form, more):
    trained = make_model("last", 4, loss="softmax", form=form, items=ITEMS, **more)
    ranks, found = _ranks(trained), _recommended(trained, ITEMS)
    assert [ranks[int(item)] for item, _ in found] == list(range(1, ITEMS + 1))
    assert _recommended(trained, 3) == found[:3]


def test_the_sums_over_all_items_are_computed_once(monkeypatch):
    """When the keeper is opened, not for every user; recommendations are the same."""
    trained = make_model("last", 4, loss="softmax", inner_loss="linearised", items=ITEMS)
    expected, sums = _ranks(trained), []
    item_sums = LinearisedDotProduct.item_sums
    monkeypatch.setattr(
        LinearisedDotProduct, "item_sums", lambda model: sums.append(1) or item_sums(model)
    )
    keeper = open_keeper(trained, "memory:")
    keeper.observe_many({"user": "u", "item": str(item)} for item in HISTORY)
    for _ in range(3):
        found = keeper.recommend("u", ITEMS)
    assert len(sums) == 1
    assert [expected[int(item)] for item, _ in found] == list(range(1, ITEMS + 1))


@given(
    scores=st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0, math.nan]), min_size=1),
    n=st.integers(1, 9),
)
def test_the_highest_scores_are_those_of_a_whole_sort(scores, n):
    """Also with ties, items that are filtered (-inf), and NaN."""
    tensor = torch.tensor(scores)
    order = tensor.argsort(descending=True, stable=True).tolist()
    assert _highest(tensor, n) == [item for item in order if scores[item] != -math.inf][:n]


def test_no_items_are_left_when_all_are_filtered():
    trained = make_model("last", 3, loss="softmax", items=2, filter_sketch=True)
    keeper = open_keeper(trained, "memory:")
    keeper.observe_many({"user": "u", "item": item} for item in "01")
    assert keeper.recommend("u", 5) == []
    assert len(keeper.recommend("nobody", 5)) == 2


def test_unknown_items_filter_nothing():
    trained = make_model("last", 4, loss="softmax", items=ITEMS, filter_sketch=True)
    keeper = open_keeper(trained, "memory:")
    keeper.observe_many({"user": "u", "item": item} for item in ("3", "unknown"))
    assert {item for item, _ in keeper.recommend("u", ITEMS)} == set(map(str, range(ITEMS))) - {"3"}


def test_items_with_nan_scores_are_not_filtered():
    trained = make_model("last", 4, loss="softmax", items=ITEMS, filter_sketch=True)
    trained.recommender.user_prior.data.fill_(math.nan)
    assert all(math.isnan(score) for _, score in open_keeper(trained, "memory:").recommend("u", 3))
    assert len(open_keeper(trained, "memory:").recommend("u", 3)) == 3
