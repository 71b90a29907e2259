"""Loss differences against a loop that reads every sketch with and without every entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.credit.difference import loss_differences, supports_differences
from dips.recommender.base import Evidence, Recommender

Make, MakeCase = Callable[..., Recommender], Callable[..., Any]
TIGHT = {"atol": 1e-10, "rtol": 1e-10}


def _reference(
    model: Recommender, entries: Evidence, present: Tensor, item: Tensor, rating: Tensor,
    counted: Tensor,
) -> Tensor:  # fmt: skip
    """Return differences by reading two sketches for each entry."""

    def loss(row: int, weight: Tensor) -> Tensor:
        one = Evidence(*(field[row : row + 1] for field in entries))
        user = model.read(one._replace(weight=weight[None]))
        losses = model.losses(user, item[row : row + 1], rating[row : row + 1])
        return losses[counted[row : row + 1]].sum()

    found = torch.zeros_like(entries.weight)
    for row, slot in present.nonzero().tolist():
        with_it, without = entries.weight[row].clone(), entries.weight[row].clone()
        with_it[slot], without[slot] = 1.0, 0.0
        found[row, slot] = loss(row, with_it) - loss(row, without)
    return found


def _entries(case: Any) -> tuple[Evidence, Tensor]:
    """Return entries that are in the sketch (weight 1), dropped (0) or empty slots."""
    given = case.evidence
    place = torch.arange(given.weight.numel()).view_as(given.weight)
    present = place % 5 != 3
    return given._replace(weight=((place % 3 != 1) & present).double()), present


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("predictions", [1, 4])
def test_differences_equal_two_readings(
    make: Make, case: MakeCase, penalty: float, predictions: int
) -> None:
    model = make("dot", "mse", prior_penalty=penalty)
    given = case(rows=9, n=6)
    entries, present = _entries(given)
    item = torch.cat([given.item[:, None], given.others.item], 1)[:, :predictions]
    rating = torch.cat([given.rating[:, None], given.others.rating], 1)[:, :predictions]
    counted = torch.arange(9 * predictions).view(9, -1) % 4 != 2
    mine = loss_differences(model, entries, present, item, rating, counted)
    expected = _reference(model, entries, present, item, rating, counted)
    torch.testing.assert_close(mine, expected, **TIGHT)
    assert float(expected.abs().max()) > 1e-2
    assert not mine[~present].any()


def test_gradients_misjudge_what_differences_measure(make: Make) -> None:
    """Two equal entries: the slope at weight 1 is below the difference, at weight 0 above it."""
    model = make("dot", "mse", inner_lr=0.5)
    item, rating = torch.tensor([[2, 5]]), torch.tensor([[1.0, 1.0]]).double()
    everything = torch.ones(1, 2, dtype=torch.bool)
    target = item[:, :1], rating[:, :1]  # the interaction itself comes again

    def slope_and_difference(weight: list[float]) -> tuple[Tensor, Tensor]:
        entries = Evidence.new(item, rating, torch.tensor([weight]).double(), torch.tensor([2]))
        free = entries.weight.clone().requires_grad_()
        loss = model.losses(model.read(entries._replace(weight=free)), *target).sum()
        (slope,) = torch.autograd.grad(loss, free)
        counted = torch.ones(1, 1, dtype=torch.bool)
        return slope, loss_differences(model, entries, everything, *target, counted)

    kept_slope, kept = slope_and_difference([1.0, 1.0])
    dropped_slope, dropped = slope_and_difference([0.0, 1.0])
    torch.testing.assert_close(kept[0, 0], dropped[0, 0], **TIGHT)  # one and the same change
    assert float(kept[0, 0]) < 0
    assert abs(float(kept_slope[0, 0])) < abs(float(kept[0, 0])) < abs(float(dropped_slope[0, 0]))


def test_which_recommenders_have_differences(make: Make) -> None:
    assert supports_differences(make("dot", "mse"))
    assert not any(supports_differences(make(*form)) for form in [("dot", "bce"), ("mlp", "mse")])
