"""What was read ranks last where a recommender strikes, and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor

from dips.recommender.base import Recommender, struck
from dips.recommender.losses import FullSoftmax

SCORES = torch.tensor([[9.0, 8.0, 7.0, -6.0], [9.0, 8.0, 7.0, -6.0]])
ITEM, WEIGHT = torch.tensor([[0, 1, 0], [2, 0, 0]]), torch.tensor([[1.0, 1, 0], [1, 0, 0]])


class Least(Recommender):
    """One method."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        return user.sum(1, keepdim=True) * items


def test_what_was_read_comes_last() -> None:
    found = struck(SCORES, ITEM, WEIGHT).argsort(descending=True, stable=True).tolist()
    assert found == [[2, 3, 0, 1], [0, 1, 3, 2]]  # padding strikes nothing out


def test_what_stands_there_twice_is_below_all_others_and_equal_among_themselves() -> None:
    found = struck(SCORES.double(), torch.tensor([[3, 3, 0], [1, 1, 1]]), torch.ones(2, 3))
    low = -torch.inf
    expected = torch.tensor([[low, 8, 7, low], [9, low, 7, -6]], dtype=torch.float64)
    assert torch.equal(found, expected)


def test_what_is_not_a_number_is_not_hidden() -> None:
    scores = SCORES.clone()
    scores[0, 0] = torch.nan
    assert struck(scores, ITEM, WEIGHT)[0, 0].isnan()


def test_only_those_strike_who_are_told_to() -> None:
    model = Least(items=4, loss=FullSoftmax())
    assert model.offered(SCORES, ITEM, WEIGHT) is SCORES
    model.filters_sketch = True
    assert torch.equal(model.offered(SCORES, ITEM, WEIGHT), struck(SCORES, ITEM, WEIGHT))
