"""What counts reads the newest items, and strikes out all that came before where it is asked to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sequential import Notes, count, grid, lead, newest

from dips.data.interactions import Interactions
from dips.recommender.base import Evidence
from dips.recommender.memory_based import companions, popularity
from dips.stream.users import Columns

World = Callable[..., Interactions]


def test_the_newest_of_whole_histories() -> None:
    item = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]])
    slots = torch.tensor([4, 2, 0])
    weight = (torch.arange(4) < slots[:, None]).float()
    found = newest(Evidence.new(item, weight, weight, slots), 3)
    assert found.slots.tolist() == [3, 2, 0]
    assert found.weight.tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    assert found.item[0].tolist() == [2, 3, 4]
    assert found.item[1, :2].tolist() == [5, 6]


@pytest.mark.parametrize("strike", [False, True])
def test_item_knn_by_a_slow_loop(world: World, strike: bool) -> None:
    data = world([9, 3, 14, 1, 6, 11], items=30, explicit=False)
    train, part = data.select([0, 2, 5]), data.select([1, 3, 4])
    near, popular = companions(train, 30, 20.0), popularity(train).double()
    hits = []
    for user in range(part.users):
        history = part.item[part.events(user)].tolist()
        for step, target in enumerate(history):
            scores = 1e-6 * popular / popular.sum()
            for age, item in enumerate(reversed(history[max(0, step - 2) : step])):
                scores = scores.index_add(0, near.item[item], 0.5**age * near.score[item].double())
            if strike:
                scores[history[:step]] = -1.0
            above, same = (scores > scores[target]).sum(), (scores == scores[target]).sum() - 1
            hits.append(float(1 + above + same / 2 <= 20))
    settings = {"kind": "companions", "size": 2, "fade": 0.5, "shrink": 20.0}
    found = count(train, part, Columns.of(data, "cpu"), **settings, strike=strike)
    assert found["recall@20"] == pytest.approx(sum(hits) / len(hits), abs=1e-6)


def test_striking_out_is_tried_beside_every_setting() -> None:
    for choices in grid().values():
        plain = [choice for choice in choices if "strike" not in choice]
        assert [{**choice, "strike": True} for choice in plain] == [
            choice for choice in choices if "strike" in choice
        ]


def test_what_was_found_is_not_asked_again_and_time_may_be_over(tmp_path: Path) -> None:
    asked = []

    def score(*question: object) -> dict[str, float]:
        asked.append(question)
        return {"recall@20": 0.5}

    def over(text: str) -> None:
        raise KeyboardInterrupt

    place = tmp_path / "notes.json"
    first = Notes(place, lambda text: None).get(score, "gru", {"dim": 3}, 0, 1)
    again = Notes(place, over)
    assert again.get(score, "gru", {"dim": 3}, 0, 1) == first
    with pytest.raises(KeyboardInterrupt):
        again.get(score, "gru", {"dim": 3}, 0, 2)
    assert asked == [("gru", {"dim": 3}, 0, 1)]
    assert len(json.loads(place.read_text())) == 1


def test_what_diverged_leads_nobody() -> None:
    counted = {"markov": {"recall@20": 0.2}, "item-knn": {"recall@20": 0.4}}
    assert lead({"gru": {"recall@20": 0.5}, **counted}) == pytest.approx(1.25)
    assert lead({"gru": {}, **counted}) == 0
