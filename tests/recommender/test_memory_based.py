"""Baselines from counts equal slow loops and another solver; ties go to the popular."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.recommender import memory_based as neighbours
from dips.recommender.base import Evidence
from dips.recommender.memory_based import (
    Neighbours,
    knn_neighbours,
    linear_scores,
    linear_weights,
    markov_neighbours,
    neighbour_scores,
    popularity,
)

World = Callable[..., Interactions]
ITEMS = 7


@pytest.fixture
def part(world: World) -> Interactions:
    """Some users of a world, in another order."""
    return world([9, 3, 14, 1, 6], items=ITEMS, explicit=False).select([4, 0, 2])


def _histories(data: Interactions) -> list[list[int]]:
    return [data.item[data.events(user)].tolist() for user in range(data.users)]


def _dense(near: Neighbours) -> torch.Tensor:
    return torch.zeros(ITEMS, ITEMS).scatter_add(1, near.item, near.score)


def test_popularity(part: Interactions) -> None:
    counts = Counter(item for history in _histories(part) for item in history)
    assert popularity(part).tolist() == [counts[item] for item in range(ITEMS)]


def test_markov_neighbours_are_relative_frequencies(part: Interactions) -> None:
    after = Counter(pair for history in _histories(part) for pair in pairwise(history))
    table = _dense(markov_neighbours(part, ITEMS))
    for item in range(ITEMS):
        total = sum(after[item, other] for other in range(ITEMS))
        for other in range(ITEMS):
            assert float(table[item, other]) == pytest.approx(after[item, other] / max(1, total))


@pytest.mark.parametrize("shrink", [0.0, 2.0])
def test_knn_neighbours_share_users(
    part: Interactions, shrink: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 3)
    fans = [
        {user for user, history in enumerate(_histories(part)) if item in history}
        for item in range(ITEMS)
    ]
    table = _dense(knn_neighbours(part, ITEMS, shrink))
    for item in range(ITEMS):
        for other in range(ITEMS):
            shared = len(fans[item] & fans[other]) if item != other else 0
            norm = (len(fans[item]) * len(fans[other])) ** 0.5 + shrink
            assert float(table[item, other]) == pytest.approx(shared / max(norm, 1e-9))


def test_the_best_neighbours_are_kept(part: Interactions) -> None:
    full, near = _dense(knn_neighbours(part, ITEMS)), knn_neighbours(part, 2)
    assert near.item.shape == (ITEMS, 2)
    torch.testing.assert_close(near.score, full.topk(2, 1).values)


def test_scores_decay_and_ties_go_to_the_popular() -> None:
    near = Neighbours(torch.tensor([[1, 2], [3, 0], [0, 0], [0, 0]]),
                      torch.tensor([[0.5, 0.25], [0.5, 0.0], [0.0, 0.0], [0.0, 0.0]]))  # fmt: skip
    popular = torch.tensor([1.0, 2.0, 3.0, 4.0])
    evidence = Evidence.new(torch.tensor([[0, 1, 0], [0, 0, 0]]), torch.ones(2, 3),
                        torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
                        torch.tensor([2, 0]))  # fmt: skip
    scores = neighbour_scores(near, popular, evidence, decay=0.5)
    torch.testing.assert_close(scores[0], torch.tensor([0, 0.25, 0.125, 0.5]), atol=1e-5, rtol=0)
    assert scores[1].argsort(descending=True).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(("size", "decay"), [(1, 1.0), (3, 0.7), (20, 0.9)])
def test_linear_weights_equal_least_squares(part: Interactions, size: int, decay: float) -> None:
    """Least squares on all rows of X and Y, with one row per item for the penalty."""
    inputs, targets = [], []
    for history in _histories(part):
        for step in range(1, len(history)):
            row = torch.zeros(ITEMS, dtype=torch.float64)
            for age, item in enumerate(reversed(history[max(0, step - size) : step])):
                row[item] += decay**age
            inputs.append(row)
            targets.append(torch.eye(ITEMS, dtype=torch.float64)[history[step]])
    penalty = torch.eye(ITEMS, dtype=torch.float64)
    stacked = torch.cat([torch.stack(inputs), 2.0**0.5 * penalty])
    wanted = torch.linalg.lstsq(stacked, torch.cat([torch.stack(targets), 0 * penalty])).solution
    found = linear_weights(part, size, decay, penalty=2.0)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-4)


def test_a_linear_model_learns_the_next_item_of_a_cycle(world: World) -> None:
    """Every user meets items 0, 1, 2, ... in turn: the item after the newest is predicted."""
    data = world([40] * 6, items=ITEMS, explicit=False)
    data.item[:] = [place % ITEMS for place in range(40)] * 6
    weights = linear_weights(data, size=3, decay=0.5, penalty=1e-3)
    item = torch.tensor([[0, 1, 2], [4, 5, 6], [3, 4, 0], [0, 0, 0]])
    there = torch.tensor([[1.0, 1, 1], [1, 1, 1], [1, 1, 0], [0, 0, 0]])
    popular = torch.arange(ITEMS).float()
    evidence = Evidence.new(item, there, there, there.sum(1).long())
    scores = linear_scores(weights, popular, evidence, decay=0.5)
    assert scores.argmax(1).tolist() == [3, 0, 5, ITEMS - 1]
    torch.testing.assert_close(scores[2], 0.5 * weights[3] + weights[4], atol=2e-6, rtol=1e-4)


def test_a_linear_model_of_too_many_items_is_refused(
    part: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "MAX_LINEAR_ITEMS", ITEMS - 1)
    with pytest.raises(ConfigError, match="has 7 items: use item-kNN, or keep at most 6 items"):
        linear_weights(part, size=2)


def test_a_linear_model_may_read_more_items_than_there_are_events(part: Interactions) -> None:
    wide, most = linear_weights(part, len(part) + 5), linear_weights(part, len(part) - 1)
    torch.testing.assert_close(wide, most)
