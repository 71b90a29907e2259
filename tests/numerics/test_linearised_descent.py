"""The linearised descent is gradient descent on a quadratic loss; its adjoint equals autograd."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.autograd.functional import hessian, jacobian

from dips.numerics.descent import descend
from dips.numerics.fixed_point import STATE_BITS, quantize
from dips.numerics.linearised_descent import (
    LinearisedProblem,
    Moments,
    adjoint,
    curvature_bound,
    item_sums,
    iterates,
    moments,
    quantized_moments,
    stable_rate,
)

ROWS, ITEMS, DIM, ENTRIES, STEPS = 3, 9, 4, 3, 6
PENALTY = pytest.mark.parametrize("penalty", [0.0, 0.7])
TIGHT = {"atol": 1e-12, "rtol": 1e-12}


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


TABLE, BIAS = _random(ITEMS, DIM, seed=0), _random(ITEMS, seed=1)
ENTRY, WEIGHT = _random(ROWS, ENTRIES, DIM, seed=2), _random(ROWS, ENTRIES, seed=3).abs()
START = _random(ROWS, DIM, seed=4)
RATE = torch.tensor([0.3, 0.1, 0.05], dtype=torch.float64)
SCALE = torch.tensor(1.7, dtype=torch.float64)


def _problem(weight: Tensor = WEIGHT, penalty: float = 0.0, **rest: Tensor) -> LinearisedProblem:
    known = moments(item_sums(rest.get("table", TABLE), rest.get("bias", BIAS)))
    feature_sum = (ENTRY * weight[:, :, None]).sum(1)
    rate = rest.get("rate", RATE)
    return LinearisedProblem(known, SCALE, feature_sum, weight.sum(1), START, rate, penalty)


def _loss(user: Tensor, known: Moments, weight: Tensor = WEIGHT, scale: Tensor = SCALE) -> Tensor:
    """Return the loss of the module's docstring, [rows], written entry by entry."""
    total = torch.zeros(ROWS, dtype=torch.float64)
    for place in range(ENTRIES):
        linear = scale * ((known.mean - ENTRY[:, place]) * user).sum(1)
        quadratic = torch.einsum("rd,de,re->r", user, known.covariance, user) / 2
        total = total + weight[:, place] * (linear + quadratic)
    return total


def test_the_loss_has_gradient_and_hessian_of_the_softmax_loss_at_zero() -> None:
    entry, zero = ENTRY[0, 0], torch.zeros(DIM, dtype=torch.float64)

    def softmax_loss(user: Tensor) -> Tensor:
        return (TABLE @ user + BIAS).logsumexp(0) - entry @ user

    mean, covariance = moments(item_sums(TABLE, BIAS))
    torch.testing.assert_close(mean - entry, jacobian(softmax_loss, zero), **TIGHT)
    torch.testing.assert_close(covariance, hessian(softmax_loss, zero), **TIGHT)


def test_moments_equal_a_slow_loop() -> None:
    weight = [float(bias.exp()) for bias in BIAS]
    share = [one / sum(weight) for one in weight]
    mean = sum(p * row for p, row in zip(share, TABLE, strict=True))
    spread = [p * torch.outer(row - mean, row - mean) for p, row in zip(share, TABLE, strict=True)]
    found = moments(item_sums(TABLE, BIAS))
    torch.testing.assert_close(found.mean, mean, **TIGHT)
    torch.testing.assert_close(found.covariance, torch.stack(spread).sum(0), **TIGHT)


def test_sums_over_parts_of_the_items_add_up() -> None:
    parts = [item_sums(TABLE[rows], BIAS[rows]) for rows in (slice(0, 2), slice(2, 9))]
    torch.testing.assert_close(parts[0] + parts[1], item_sums(TABLE, BIAS), **TIGHT)


def test_moments_do_not_change_if_a_constant_is_added_to_all_biases() -> None:
    for one, other in zip(
        moments(item_sums(TABLE, BIAS)), moments(item_sums(TABLE, BIAS + 5)), strict=True
    ):
        torch.testing.assert_close(one, other, **TIGHT)


def test_quantized_moments_are_close_and_on_the_grid() -> None:
    table, bias = quantize(TABLE, 12), quantize(BIAS, 12)
    found, exact = quantized_moments(table, bias), moments(item_sums(table, bias))
    for one, other in zip(found, exact, strict=True):
        assert torch.equal(one, quantize(one, STATE_BITS))
        torch.testing.assert_close(one, other, atol=2 * 2.0**-STATE_BITS, rtol=0)


@PENALTY
def test_iterates_are_those_of_gradient_descent(penalty: float) -> None:
    """By autograd on the stated loss; every iterate, not only the last."""
    problem = _problem(penalty=penalty)
    users = iterates(problem, STEPS)
    assert len(users) == STEPS + 1
    for steps, user in enumerate(users):
        objective = partial(_loss, known=problem.moments)
        wanted = descend(objective, START, RATE, steps, penalty)
        torch.testing.assert_close(user, wanted, **TIGHT)
    assert float((users[-1] - START).abs().min()) > 1e-3  # they do move


@PENALTY
def test_many_steps_reach_the_minimum_in_closed_form(penalty: float) -> None:
    problem = _problem(penalty=penalty, rate=torch.full((ROWS,), 0.2, dtype=torch.float64))
    (mean, covariance), total = problem.moments, WEIGHT.sum(1)
    for row in range(ROWS):
        system = total[row] * covariance + 2 * penalty * torch.eye(DIM, dtype=torch.float64)
        target = SCALE * (problem.feature_sum[row] - total[row] * mean)
        minimum = torch.linalg.solve(system, target + 2 * penalty * START[row])
        user = iterates(problem, 4000)[-1][row]
        torch.testing.assert_close(user, minimum, atol=1e-8, rtol=1e-8)


def test_the_rounding_is_applied_after_every_step() -> None:
    coarse = partial(quantize, bits=6)
    exact, rounded = iterates(_problem(), STEPS), iterates(_problem(), STEPS, coarse)
    for user in rounded[1:]:
        assert torch.equal(user, coarse(user))
    by_hand = START
    for _ in range(STEPS):
        by_hand = coarse(iterates(_problem()._replace(start=by_hand), 1)[-1])
    assert torch.equal(rounded[-1], by_hand)
    assert not torch.equal(rounded[-1], coarse(exact[-1]))  # rounding once is not the same


def _prediction_loss(user: Tensor) -> Tensor:
    """Return some other loss of the last iterate, [rows]."""
    return ((user - 0.3) ** 2).sum(1) + user.cos().sum(1)


@PENALTY
def test_the_adjoint_equals_autograd_and_finite_differences(penalty: float) -> None:
    """In the weights of the entries; an entry of weight 0 has a gradient, too."""
    weight = WEIGHT.clone()
    weight[0, 1], weight[1] = 0.0, 0.0
    problem = _problem(weight, penalty)
    users = iterates(problem, STEPS)
    gradient = torch.func.grad(lambda user: _prediction_loss(user).sum())(users[-1])
    total, common = adjoint(problem, users, gradient)
    mine = (ENTRY @ total[:, :, None])[:, :, 0] - common[:, None]

    def loss(weight: Tensor) -> Tensor:
        return _prediction_loss(iterates(_problem(weight, penalty), STEPS)[-1])

    torch.testing.assert_close(mine, torch.func.grad(lambda w: loss(w).sum())(weight), **TIGHT)
    assert float(mine.abs().min()) > 1e-3
    for place, step in enumerate(torch.eye(ENTRIES, dtype=torch.float64) * 1e-5):
        slope = (loss(weight + step) - loss(weight - step)) / 2e-5
        torch.testing.assert_close(mine[:, place], slope, atol=1e-8, rtol=1e-6)


@PENALTY
def test_meta_gradients_in_item_vectors_and_biases(penalty: float) -> None:
    """Through the moments; the step size is a constant."""

    def last(table: Tensor, bias: Tensor) -> Tensor:
        return iterates(_problem(penalty=penalty, table=table, bias=bias), STEPS)[-1]

    given = (TABLE.clone().requires_grad_(), BIAS.clone().requires_grad_())
    assert gradcheck(last, given)
    assert all(slope.any() for slope in torch.autograd.grad(last(*given).sum(), given))


def test_the_bound_is_at_least_the_largest_eigenvalue() -> None:
    for seed in range(20):
        factor = _random(DIM, DIM, seed=seed)
        largest = torch.linalg.eigvalsh(factor @ factor.T)[-1]
        assert largest <= curvature_bound(factor @ factor.T) <= DIM * largest


@pytest.mark.parametrize("penalty", [0.0, 20.0])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_a_stable_rate_never_diverges(size: float, penalty: float) -> None:
    """The loss never rises, for weights and penalties of any size."""
    weight, penalty = WEIGHT * size, penalty * size
    known = moments(item_sums(TABLE, BIAS))
    rate = torch.full((ROWS,), 5.0, dtype=torch.float64)
    total, bound = weight.sum(1), curvature_bound(known.covariance)
    stable = stable_rate(rate, total, bound, penalty)
    assert bool((stable > 0).all())

    def losses(rate: Tensor) -> Tensor:
        users = iterates(_problem(weight, penalty, rate=rate), 30)
        pull = [penalty * ((user - START) ** 2).sum(1) for user in users]
        return torch.stack([_loss(user, known, weight) for user in users]) + torch.stack(pull)

    found = losses(stable)
    assert bool((found.diff(dim=0) <= 1e-9 * found.abs().max()).all())
    fast = losses(rate)  # it may overflow
    assert not bool((fast[-1] <= fast[0]).all())


def test_a_stable_rate_leaves_small_rates_alone() -> None:
    bound, weight = torch.tensor(0.5), torch.tensor([0.0, 1.0, 4.0, 4.0])
    rate = torch.tensor([7.0, 0.1, 0.5, 1.0])
    assert stable_rate(rate, weight, bound).tolist() == pytest.approx([7.0, 0.1, 0.5, 0.5])
    assert stable_rate(rate, weight, bound, 1.0).tolist() == pytest.approx([0.5, 0.1, 0.25, 0.25])
