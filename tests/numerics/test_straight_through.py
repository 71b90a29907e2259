"""Relaxed choices: their values, their slopes, and the expectations of their estimators."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import grad, vmap

from dips.numerics.straight_through import (
    gumbel_keep,
    log_removal,
    soft_keep,
)
from dips.numerics.topk import project_top_k

EXTREME = torch.tensor(
    [[1e3, -1e3, 0.0, 50.0], [1e3, 1e3, 1e3, -1e3], [0.0, 0.0, 0.0, 0.0]]
).double()


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _mixed() -> tuple[Tensor, Tensor]:
    """Scores, and rows with 0 to 7 present entries in no order."""
    count = torch.arange(8)[:, None]
    place = _normal(8, 7, seed=1).argsort(1)
    return _normal(8, 7), place < count


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_each_row_follows_the_rule_of_its_number_of_entries(size: int) -> None:
    scores, present = _mixed()
    kept = soft_keep(scores, present, size)
    assert bool((kept[~present] == 0).all())
    for row in range(8):
        there, values = present[row], scores[row][present[row]]
        if row <= size:
            expected = torch.ones(row).double()
        elif row == size + 1:
            expected = 1 - torch.softmax(-values, 0)
        else:
            expected = project_top_k(values[None], size)[0]
        torch.testing.assert_close(kept[row][there], expected)
    total = present.sum(1).clamp_max(size).double()
    torch.testing.assert_close(kept.sum(1), total)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_gradients(size: int) -> None:
    scores, present = _mixed()
    noise = _normal(8, 7, seed=2)
    scores.requires_grad_()
    assert gradcheck(partial(soft_keep, present=present, size=size), scores)
    relaxed = partial(gumbel_keep, noise=noise, present=present, size=size, temperature=0.7)
    assert gradcheck(relaxed, scores)
    dropped = torch.where(present.any(1), present.long().argmax(1), -1)
    assert gradcheck(lambda s: log_removal(s, present, dropped), scores)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_extreme_and_tied_scores(size: int) -> None:
    scores = EXTREME.clone().requires_grad_()
    present = torch.ones(3, 4, dtype=torch.bool)
    noise = torch.zeros(3, 4).double()
    kept = soft_keep(scores, present, size)
    torch.testing.assert_close(kept.sum(1), torch.full((3,), float(size)).double())
    torch.testing.assert_close(kept[2], torch.full((4,), size / 4).double(), atol=1e-8, rtol=0)
    torch.testing.assert_close(kept[1, :3].detach(), kept[1, :1].detach().expand(3))
    best = (scores[0].argsort(descending=True).argsort() < size).double()
    torch.testing.assert_close(kept[0].detach(), best)
    for soft in (kept, gumbel_keep(scores, noise, present, size, 0.1)):
        (slope,) = torch.autograd.grad((soft * _normal(3, 4)).sum(), scores, retain_graph=True)
        assert bool(slope.isfinite().all())
    lost = log_removal(scores, present, torch.tensor([0, 3, 1]))
    assert lost.tolist() == pytest.approx([-2000.0, 0.0, -torch.tensor(4.0).log().item()])


def test_values_in_empty_slots_do_not_matter() -> None:
    scores, present = _mixed()
    dropped = present.long().argmax(1)
    for value_there in (1e300, -1e300, torch.inf, -torch.inf, torch.nan):
        other = scores.masked_fill(~present, value_there)
        for size in (1, 3):
            assert torch.equal(soft_keep(other, present, size), soft_keep(scores, present, size))
        some = present.any(1)
        ours, theirs = log_removal(other, present, dropped), log_removal(scores, present, dropped)
        assert torch.equal(ours[some], theirs[some])


def test_under_vmap_and_grad() -> None:
    scores, present = _mixed()
    value, noise = _normal(8, 7, seed=3), _normal(8, 7, seed=4)
    dropped = torch.where(present.any(1), present.long().argmax(1), -1)

    def total(s: Tensor, p: Tensor, v: Tensor, n: Tensor, d: Tensor) -> Tensor:
        soft = soft_keep(s, p, 2) + gumbel_keep(s, n, p, 2, 0.5)
        return (soft * v).sum() + log_removal(s, p, d).sum()

    inputs = [field.unflatten(0, (2, 4)) for field in (scores, present, value, noise, dropped)]
    by_func = vmap(grad(total))(*inputs).flatten(0, 1)
    scores.requires_grad_()
    (plain,) = torch.autograd.grad(total(scores, present, value, noise, dropped), scores)
    torch.testing.assert_close(by_func, plain)


def test_float32() -> None:
    scores, present = _mixed()
    kept = soft_keep(scores.float(), present, 2)
    assert kept.dtype == torch.float32
    torch.testing.assert_close(kept, soft_keep(scores, present, 2).float(), atol=1e-6, rtol=0)


def _slope_of_expected_loss(scores: Tensor, loss: Tensor) -> Tensor:
    """By enumeration of what is dropped: loss [n] of dropping each."""
    free = scores.clone().requires_grad_()
    (slope,) = torch.autograd.grad((torch.softmax(-free, 0) * loss).sum(), free)
    return slope


def test_straight_through_is_exact_for_linear_losses() -> None:
    """Online: the expected loss of a linear function of what is kept, enumerated."""
    scores, value = _normal(5), _normal(5, seed=1)
    loss = torch.stack([value.sum() - value[dropped] for dropped in range(5)])
    free = scores.clone().requires_grad_()
    kept = soft_keep(free[None], torch.ones(1, 5, dtype=torch.bool), 4)[0]
    (slope,) = torch.autograd.grad(kept @ value, free)
    torch.testing.assert_close(slope, _slope_of_expected_loss(scores, loss))


def _dropped(count: int, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Gumbel noise, and what it drops."""
    draw = torch.rand(
        count, len(scores), dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    noise = -(-draw.log()).log()
    return noise, (noise - scores).argmax(1)


def test_reinforce_is_unbiased_for_any_loss() -> None:
    scores, loss, count = _normal(4), _normal(4, seed=1) ** 3, 40_000
    dropped = _dropped(count, scores)[1]
    rows = scores.expand(count, -1).clone().requires_grad_()
    probability = log_removal(rows, torch.ones(count, 4, dtype=torch.bool), dropped)
    (slopes,) = torch.autograd.grad((loss[dropped] * probability).sum(), rows)
    _agree(slopes, _slope_of_expected_loss(scores, loss))


def test_gumbel_is_less_biased_at_lower_temperature() -> None:
    scores, value, count = _normal(4), _normal(4, seed=1), 40_000
    noise = _dropped(count, scores)[0]
    expected = _slope_of_expected_loss(scores, value.sum() - value)
    errors = []
    for temperature in (2.0, 0.1):
        rows = scores.expand(count, -1).clone().requires_grad_()
        everything = torch.ones(count, 4, dtype=torch.bool)
        kept = gumbel_keep(rows, noise, everything, 3, temperature)
        (slopes,) = torch.autograd.grad((kept * value).sum(), rows)
        errors.append(float((slopes.mean(0) - expected).abs().max()))
    _agree(slopes, expected)
    assert errors[0] > 3 * errors[1]  # a high temperature is biased


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_gumbel_of_two_against_an_integral(temperature: float) -> None:
    """The difference of two Gumbels is logistic: the mean slope is a one-dimensional integral."""
    scores, count = torch.tensor([0.4, -0.5]).double(), 40_000
    noise = _dropped(count, scores)[0]
    rows = scores.expand(count, -1).clone().requires_grad_()
    kept = gumbel_keep(rows, noise, torch.ones(count, 2, dtype=torch.bool), 1, temperature)
    (slopes,) = torch.autograd.grad(kept[:, 0].sum(), rows)

    def slope(x: float) -> float:
        probability = expit((x + 0.9) / temperature)
        return float(probability * (1 - probability) / temperature * expit(x) * expit(-x))

    mean = quad(slope, -40, 40, points=[-0.9, 0.0])[0]
    _agree(slopes, torch.tensor([mean, -mean]).double())


def _agree(samples: Tensor, expected: Tensor) -> None:
    """The mean of the samples within four standard errors."""
    error = samples.std(0) / len(samples) ** 0.5
    assert bool(((samples.mean(0) - expected).abs() < 4 * error).all())
    assert bool((4 * error < expected.abs().max() / 4).all())  # or anything would do
