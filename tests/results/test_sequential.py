"""Counting models read the newest items, and may filter earlier ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sequential import ResultCache, count, grid, newest, ratio

from dips.data.interactions import Interactions
from dips.recommender.base import Evidence
from dips.recommender.memory_based import knn_neighbours, linear_weights, popularity
from dips.stream.users import EventColumns

World = Callable[..., Interactions]


def test_the_newest_items_of_full_histories() -> None:
    item = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]])
    slots = torch.tensor([4, 2, 0])
    weight = (torch.arange(4) < slots[:, None]).float()
    found = newest(Evidence.new(item, weight, weight, slots), 3)
    assert found.slots.tolist() == [3, 2, 0]
    assert found.weight.tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    assert found.item[0].tolist() == [2, 3, 4]
    assert found.item[1, :2].tolist() == [5, 6]


@pytest.mark.parametrize("filter_seen", [False, True])
def test_item_knn_equals_a_slow_loop(world: World, filter_seen: bool) -> None:
    data = world([9, 3, 14, 1, 6, 11], items=30, explicit=False)
    train, part = data.select([0, 2, 5]), data.select([1, 3, 4])
    near, popular = knn_neighbours(train, 30, 20.0), popularity(train).double()
    hits = []
    for user in range(part.users):
        history = part.item[part.events(user)].tolist()
        for step, target in enumerate(history):
            scores = 1e-6 * popular / popular.sum()
            for age, item in enumerate(reversed(history[max(0, step - 2) : step])):
                scores = scores.index_add(0, near.item[item], 0.5**age * near.score[item].double())
            if filter_seen:
                scores[history[:step]] = -1.0
            above, same = (scores > scores[target]).sum(), (scores == scores[target]).sum() - 1
            hits.append(float(1 + above + same / 2 <= 20))
    settings = {"kind": "companions", "size": 2, "decay": 0.5, "shrink": 20.0}
    found = count(train, part, EventColumns.of(data, "cpu"), **settings, filter_seen=filter_seen)
    assert found["recall@20"] == pytest.approx(sum(hits) / len(hits), abs=1e-6)


@pytest.mark.parametrize("filter_seen", [False, True])
def test_a_linear_model_equals_a_slow_loop(world: World, filter_seen: bool) -> None:
    data = world([9, 3, 14, 1, 6, 11], items=30, explicit=False)
    train, part = data.select([0, 2, 5]), data.select([1, 3, 4])
    weights, popular = linear_weights(train, 2, 0.5, 3.0), popularity(train)
    hits = []
    for user in range(part.users):
        history = part.item[part.events(user)].tolist()
        for step, target in enumerate(history):
            scores = 1e-6 * popular / popular.sum()
            for age, item in enumerate(reversed(history[max(0, step - 2) : step])):
                scores = scores + 0.5**age * weights[item]
            if filter_seen:
                scores[history[:step]] = -torch.inf
            above, same = (scores > scores[target]).sum(), (scores == scores[target]).sum() - 1
            hits.append(float(1 + above + same / 2 <= 20))
    settings = {"kind": "linear", "size": 2, "decay": 0.5, "penalty": 3.0}
    found = count(train, part, EventColumns.of(data, "cpu"), **settings, filter_seen=filter_seen)
    assert found["recall@20"] == pytest.approx(sum(hits) / len(hits), abs=1e-6)


def test_filtering_is_tuned_with_every_setting() -> None:
    for choices in grid().values():
        plain = [choice for choice in choices if "filter_seen" not in choice]
        assert [{**choice, "filter_seen": True} for choice in plain] == [
            choice for choice in choices if "filter_seen" in choice
        ]


def test_finished_trials_are_not_repeated_and_time_is_limited(tmp_path: Path) -> None:
    computed = []

    def score(*key: object) -> dict[str, float]:
        computed.append(key)
        return {"recall@20": 0.5}

    def over(text: str) -> None:
        raise KeyboardInterrupt

    place = tmp_path / "cache.json"
    first = ResultCache(place, lambda text: None).get(score, "gru", {"dim": 3}, 0, 1)
    again = ResultCache(place, over)
    assert again.get(score, "gru", {"dim": 3}, 0, 1) == first
    with pytest.raises(KeyboardInterrupt):
        again.get(score, "gru", {"dim": 3}, 0, 2)
    assert computed == [("gru", {"dim": 3}, 0, 1)]
    assert len(json.loads(place.read_text())) == 1


def test_a_diverged_trial_is_never_chosen() -> None:
    counted = {"markov": {"recall@20": 0.2}, "item-knn": {"recall@20": 0.4}}
    assert ratio({"gru": {"recall@20": 0.5}, **counted}) == pytest.approx(1.25)
    assert ratio({"gru": {}, **counted}) == 0
