"""Masks of sketch items in the ranking, losses with negatives, and the unit of ratings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender, mask_items
from dips.recommender.dot import DotProduct
from dips.recommender.gru import GRU
from dips.recommender.losses import (
    BPR,
    BinaryCrossEntropy,
    BPRMax,
    FullSoftmax,
    Loss,
    SampledSoftmax,
    SquaredError,
)
from dips.recommender.mlp import MLP
from dips.recommender.registry import RecommenderSpec, make_recommender

SCORES = torch.tensor([[9.0, 8.0, 7.0, -6.0], [9.0, 8.0, 7.0, -6.0]])
ITEM, WEIGHT = torch.tensor([[0, 1, 0], [2, 0, 0]]), torch.tensor([[1.0, 1, 0], [1, 0, 0]])


class Least(Recommender):
    """One method."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        return user.sum(1, keepdim=True) * items


def test_masked_items_rank_last() -> None:
    found = mask_items(SCORES, ITEM, WEIGHT).argsort(descending=True, stable=True).tolist()
    assert found == [[2, 3, 0, 1], [0, 1, 3, 2]]  # padding masks nothing


def test_an_item_that_occurs_twice_is_masked_once() -> None:
    found = mask_items(SCORES.double(), torch.tensor([[3, 3, 0], [1, 1, 1]]), torch.ones(2, 3))
    low = -torch.inf
    expected = torch.tensor([[low, 8, 7, low], [9, low, 7, -6]], dtype=torch.float64)
    assert torch.equal(found, expected)


def test_nan_stays_nan() -> None:
    scores = SCORES.clone()
    scores[0, 0] = torch.nan
    assert mask_items(scores, ITEM, WEIGHT)[0, 0].isnan()


def test_scores_are_masked_only_if_the_recommender_masks_the_sketch() -> None:
    model = Least(items=4, loss=FullSoftmax())
    assert model.filtered_scores(SCORES, ITEM, WEIGHT) is SCORES
    model.masks_sketch = True
    assert torch.equal(
        model.filtered_scores(SCORES, ITEM, WEIGHT), mask_items(SCORES, ITEM, WEIGHT)
    )


Dot = Callable[..., DotProduct]


@pytest.mark.parametrize("kind", [DotProduct, MLP, GRU])
def test_losses_are_those_of_a_slow_loop(kind: Callable[..., Recommender]) -> None:
    model = kind(items=9, loss=BPR(4), dim=5).double().requires_grad_(False)
    model.negatives.copy_(torch.tensor([7, 2, 5, 0]))
    user = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    items = torch.tensor([[2, 8], [1, 1], [5, 3]])
    found = model.losses(user, items, torch.ones(3, 2))
    scores = model.predict_all(user)
    for row in range(3):
        for place in range(2):
            own = items[row, place]
            gaps = [
                torch.nn.functional.softplus(scores[row, other] - scores[row, own])
                for other in (7, 2, 5, 0)
                if other != own
            ]
            assert float(found[row, place]) == pytest.approx(float(sum(gaps)) / 4)


def test_everything_as_negatives_reads_like_the_full_softmax(dot: Dot) -> None:
    """The inner loop and its end, by automatic differentiation and in closed form."""
    past = Evidence.new(
        torch.tensor([[1, 4], [6, 0]]), torch.ones(2, 2), torch.tensor([[1.0, 1.0], [0.5, 0.0]]),
        torch.tensor([2, 1]),
    )  # fmt: skip
    sampled, full = dot(SampledSoftmax(8)), dot(FullSoftmax())
    torch.testing.assert_close(sampled.read(past), full.read(past))


def test_negatives_are_different_items_and_part_of_the_state() -> None:
    spec = RecommenderSpec(kind="gru", loss="bpr-max", items=20, dim=3, negatives=6)
    model = make_recommender(spec)
    assert model.loss == BPRMax(6)
    assert len(set(model.state_dict()["negatives"].tolist())) == 6
    few = make_recommender(RecommenderSpec(kind="dot", loss="bpr", items=20))
    assert few.negatives.tolist() == list(range(20))  # there are no more
    assert RecommenderSpec.from_dict(spec.to_dict()) == spec


UNITS = [(1.0, 0.0), (2.0, 0.0), (0.1, 0.0), (1e-6, 0.0), (1.0, 100.0)]


@pytest.mark.parametrize(("scale", "shift"), UNITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standardised_ratings_do_not_depend_on_the_unit(
    scale: float, shift: float, dtype: torch.dtype
) -> None:
    """They lie on the fixed-point grid, so the rounding of the unit disappears."""
    stars = torch.tensor([1.0, 2.0, 2.5, 3.0, 4.0, 4.5, 5.0], dtype=torch.float64)
    center, spread = 3.53, 1.125
    model = Least(
        items=3, loss=SquaredError(), rating_center=scale * center + shift,
        rating_spread=scale * spread,
    )  # fmt: skip
    found = model.standardise((scale * stars + shift).to(dtype))
    expected = ((stars - center) / spread * 2**16).round() / 2**16
    assert torch.equal(found, expected.to(dtype))
    back = scale * stars + shift
    torch.testing.assert_close(model.estimate(expected), back, atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("loss", [BinaryCrossEntropy(2e-6), FullSoftmax()])
def test_losses_of_logits_leave_ratings_as_they_are(loss: Loss) -> None:
    rating = torch.tensor([1e-6, 3e-6])
    assert torch.equal(Least(items=3, loss=loss).standardise(rating), rating)
