"""Weights and input embeddings of sketch entries are the same for both dot products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dips.recommender.base import Evidence
from dips.recommender.losses import FullSoftmax
from dips.recommender.weighted_entries import WeightedEntries


@pytest.fixture(params=["dot", "linearised"])
def make(request: pytest.FixtureRequest) -> Callable[..., WeightedEntries]:
    """Return `make(**settings)`: a dot product for clicks, of either class."""
    build: Callable[..., WeightedEntries] = request.getfixturevalue(request.param)

    def one(**settings: Any) -> WeightedEntries:
        return build(FullSoftmax(), **settings).double().requires_grad_(False)

    return one


def test_the_weight_factor_by_hand(make: Callable[..., WeightedEntries]) -> None:
    model = make(repeat_feature=True, recency_decay=True)
    model.recency_decay.copy_(torch.tensor([0.7, 0.3]))
    model.repeat_exponent.fill_(0.4)
    age, repeats = torch.tensor([[0.0, 5.0]]).double(), torch.tensor([[3.0, 0.0]]).double()
    power = math.log1p(math.exp(0.3))
    expected = [3**0.4, (1 + 5 / math.exp(0.7)) ** -power]  # an unknown count is one
    assert model.weight_factor(age, repeats)[0].tolist() == pytest.approx(expected)
    plain = make()
    assert plain.weight_factor(age, repeats)[0].tolist() == [1, 1]


def test_weights_are_multiplied_by_the_factor(make: Callable[..., WeightedEntries]) -> None:
    """Old entries of weight z adapt the user as new ones of a smaller weight do."""
    model, plain = make(recency_decay=True), make()
    item = torch.tensor([[1, 4, 6]])
    weight, age = torch.tensor([[1, 0.5, 1]]).double(), torch.tensor([[7, 2, 0]]).double()
    past = Evidence.new(item, weight, weight, torch.tensor([3]))._replace(age=age)
    factor = model.weight_factor(age, past.repeats)
    assert bool((factor.diff() > 0).all())
    lighter = past._replace(weight=weight * factor)
    torch.testing.assert_close(model.read(past), plain.read(lighter))


def test_input_vectors_are_item_vectors_plus_an_offset(
    make: Callable[..., WeightedEntries],
) -> None:
    model, tied = make(tie_embeddings=False), make()
    items = torch.tensor([[2, 0, 2]])
    torch.testing.assert_close(
        model.input_vectors(items), model.vectors[items] + model.input_offset[items]
    )
    torch.testing.assert_close(tied.input_vectors(items), tied.vectors[items])
    assert "input_offset" in model.item_tables  # sparse updates include it
