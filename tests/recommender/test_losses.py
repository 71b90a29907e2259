"""Losses: derivatives, values are those of other libraries, names are checked."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch import Tensor

from dips.errors import ConfigError
from dips.recommender.losses import (
    BPR,
    MASKED_SCORE,
    SAMPLED_LOSSES,
    TOP1,
    BinaryCrossEntropy,
    BPRMax,
    CategoricalCrossEntropy,
    FullSoftmax,
    Loss,
    SampledLoss,
    SampledSoftmax,
    SquaredError,
    TOP1Max,
    make_loss,
)

ITEMS = 6


def _case(loss: Loss) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (4, ITEMS) if loss.listwise else (4, 3) + (() if loss.channels == 1 else (5,))
    output = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    high = ITEMS if loss.listwise else 6
    rating = torch.randint(0 if loss.listwise else 1, high, (4, 3), generator=generator)
    return output, rating if loss.listwise else rating.double()


def test_derivatives_equal_automatic_differentiation(loss: Loss) -> None:
    output, rating = _case(loss)
    leaf = output.clone().requires_grad_()
    value = loss.value(leaf, rating)
    assert value.shape == rating.shape
    if not loss.listwise:
        (expected,) = torch.autograd.grad(value.sum(), leaf)
        torch.testing.assert_close(loss.derivative(output, rating), expected)
        return
    slope = loss.derivative(output, rating)  # [rows, n, items]: each of n targets apart
    for place in range(rating.shape[1]):
        (expected,) = torch.autograd.grad(value[:, place].sum(), leaf, retain_graph=True)
        torch.testing.assert_close(slope[:, place], expected)


def test_binary_cross_entropy_is_the_log_loss() -> None:
    loss = BinaryCrossEntropy(3.0)
    output, rating = _case(loss)
    assert loss.liked(torch.tensor([2.0, 3.0, 3.5])).tolist() == [0, 0, 1]
    liked = (rating > 3).long().flatten().numpy()
    expected = log_loss(liked, loss.estimate(output).flatten().numpy())
    assert float(loss.value(output, rating).mean()) == pytest.approx(expected)
    extreme = loss.value(torch.tensor([800.0, -800.0]), torch.tensor([1.0, 5.0]))
    assert extreme.tolist() == [800.0, 800.0]


def test_categorical_cross_entropy_is_the_log_loss_over_rating_values() -> None:
    loss = CategoricalCrossEntropy((1.0, 2.0, 3.0, 4.0, 5.0))
    output, rating = _case(loss)
    chance = output.softmax(-1).reshape(-1, 5).numpy()
    expected = log_loss(rating.flatten().long().numpy(), chance, labels=[1, 2, 3, 4, 5])
    assert float(loss.value(output, rating).mean()) == pytest.approx(expected)
    mean = (chance * np.arange(1, 6)).sum(1)
    np.testing.assert_allclose(loss.estimate(output).flatten().numpy(), mean)
    halves = CategoricalCrossEntropy((0.5, 1.0, 4.5))
    assert halves.one_hot(torch.tensor([4.5, 0.5, 0.9]), torch.float32).argmax(-1).tolist() == [
        2,
        0,
        1,
    ]


def test_softmax_is_the_cross_entropy_over_items() -> None:
    output, items = _case(FullSoftmax())
    for place in range(items.shape[1]):
        expected = torch.nn.functional.cross_entropy(output, items[:, place], reduction="none")
        torch.testing.assert_close(FullSoftmax().value(output, items)[:, place], expected)


def _one(loss: SampledLoss, own: float, others: list[float]) -> float:
    """The papers' formulas, a negative at a time."""

    def chance(score: float) -> float:
        return 1 / (1 + math.exp(-score))

    total = sum(math.exp(other) for other in others)
    soft = [math.exp(other) / total for other in others]
    top = [chance(other - own) + chance(other**2) for other in others]
    if isinstance(loss, SampledSoftmax):
        return -math.log(math.exp(own) / (math.exp(own) + total))
    if isinstance(loss, BPR):
        return sum(-math.log(chance(own - other)) for other in others) / len(others)
    if isinstance(loss, TOP1):
        return sum(top) / len(others)
    if isinstance(loss, TOP1Max):
        return sum(share * term for share, term in zip(soft, top, strict=True))
    assert isinstance(loss, BPRMax)
    wins = sum(s * chance(own - other) for s, other in zip(soft, others, strict=True))
    return -math.log(wins) + 0.5 * sum(s * other**2 for s, other in zip(soft, others, strict=True))


def _sampled_losses() -> list[SampledLoss]:
    return [SampledSoftmax(3), *(kind(3) for kind in SAMPLED_LOSSES.values())]


@pytest.mark.parametrize("loss", _sampled_losses(), ids=lambda loss: type(loss).__name__)
def test_sampled_losses_are_the_formulas_of_the_papers(loss: SampledLoss) -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(4, 2, generator=generator, dtype=torch.float64) * 2
    others = torch.randn(4, 2, 3, generator=generator, dtype=torch.float64) * 2
    value = loss.value(own, others)
    for row in range(4):
        for place in range(2):
            expected = _one(loss, float(own[row, place]), others[row, place].tolist())
            assert float(value[row, place]) == pytest.approx(expected)
    leaf = own.clone().requires_grad_()
    (expected_slope,) = torch.autograd.grad(loss.value(leaf, others).sum(), leaf)
    torch.testing.assert_close(loss.derivative(own, others), expected_slope)


@pytest.mark.parametrize("loss", _sampled_losses(), ids=lambda loss: type(loss).__name__)
def test_extreme_scores_and_the_item_itself_among_the_negatives(loss: SampledLoss) -> None:
    others = torch.tensor([[[900.0, -900.0, MASKED_SCORE]]], requires_grad=True)
    own = torch.tensor([[-800.0]], requires_grad=True)
    slopes = torch.autograd.grad(loss.value(own, others).sum(), (own, others))
    assert all(bool(slope.isfinite().all()) for slope in slopes)
    assert float(slopes[1][0, 0, 2]) == 0.0
    if isinstance(loss, SampledSoftmax | BPRMax):  # as if it were not there
        torch.testing.assert_close(loss.value(own, others), loss.value(own, others[..., :2]))


def test_all_items_as_negatives_are_the_full_softmax() -> None:
    output, items = _case(FullSoftmax())
    same = torch.arange(ITEMS) == items[..., None]
    others = output[:, None, :].masked_fill(same, MASKED_SCORE)
    sampled = SampledSoftmax(ITEMS).value(output.gather(-1, items), others)
    torch.testing.assert_close(sampled, FullSoftmax().value(output, items))


def test_names() -> None:
    assert make_loss("softmax", negatives=7) == SampledSoftmax(7)
    assert make_loss("bpr-max", negatives=7) == BPRMax(7)
    assert make_loss("top1") == TOP1()
    assert make_loss("mse") == SquaredError()
    assert make_loss("softmax").listwise
    assert make_loss("bce", 1.0, 5.0) == BinaryCrossEntropy(3.0)
    assert make_loss("cce", rating_values=(1.0, 2.0)).channels == 2
    with pytest.raises(ConfigError, match="unknown loss 'mae'"):
        make_loss("mae")
