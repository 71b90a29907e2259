"""The forms of the inner loop have equal values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dips.numerics.descent import descend, descend_linear
from dips.recommender.losses import Loss

ROWS, STEPS = 3, 6
Case = dict[str, Tensor]


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _case(n: int, dim: int, channels: int, dtype: torch.dtype) -> Case:
    count = n * channels
    rating = torch.randint(1, 6, (ROWS, n), generator=torch.Generator().manual_seed(5))
    weight = _random(ROWS, n, seed=4).abs()
    weight[0, 0] = 0.0
    case = {
        "features": _random(ROWS, count, dim, seed=1) / 2,
        "intercept": _random(ROWS, count, seed=2),
        "start": _random(ROWS, dim, seed=3),
        "weight": weight,
        "rate": torch.tensor([0.1, 0.05, 0.02], dtype=torch.float64),
    }
    return {**{name: value.to(dtype) for name, value in case.items()}, "rating": rating.to(dtype)}


def _objective(loss: Loss, case: Case) -> Callable[[Tensor], Tensor]:
    def objective(user: Tensor) -> Tensor:
        scores = case["intercept"] + (case["features"] * user[:, None, :]).sum(2)
        if loss.channels > 1:
            scores = scores.unflatten(1, (-1, loss.channels))
        return (loss.value(scores, case["rating"]) * case["weight"]).sum(1)

    return objective


def _by_double_backward(
    objective: Callable[[Tensor], Tensor], start: Tensor, rate: Tensor, steps: int, penalty: float
) -> Tensor:
    """Return users by double backward, row by row and step by step."""
    users = []
    for row in range(len(start)):
        user = start
        for _ in range(steps):
            penalised = objective(user)[row] + penalty * ((user[row] - start[row]) ** 2).sum()
            (slope,) = torch.autograd.grad(penalised, user, create_graph=True)
            user = user - rate[row] * slope
        users.append(user[row])
    return torch.stack(users)


def _closed(loss: Loss, case: Case, penalty: float) -> Tensor:
    shape = (-1,) if loss.channels == 1 else (-1, loss.channels)

    def slope(scores: Tensor) -> Tensor:
        weight = case["weight"] if loss.channels == 1 else case["weight"][:, :, None]
        return (loss.derivative(scores.unflatten(1, shape), case["rating"]) * weight).flatten(1)

    arguments = (case["features"], case["intercept"], slope, case["start"], case["rate"])
    return descend_linear(*arguments, STEPS, penalty)


def _with_gradients(
    run: Callable[[Case], Tensor], case: Case, names: tuple[str, ...]
) -> dict[str, Tensor]:
    """The result, and the gradient of a fixed function of it in each named input."""
    leaves = {name: case[name].clone().requires_grad_() for name in names}
    user = run({**case, **leaves})
    direction = _random(*user.shape, seed=9).to(user.dtype)
    gradients = torch.autograd.grad(
        (user * direction).sum() + (user**2).sum(), list(leaves.values())
    )
    return {"user": user.detach(), **dict(zip(names, gradients, strict=True))}


def _agree(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=tolerance, rtol=tolerance, msg=name)


@pytest.mark.parametrize("penalty", [0.0, 0.7])
@pytest.mark.parametrize(("n", "dim"), [(2, 12), (4, 3)], ids=["few features", "many features"])
@pytest.mark.parametrize("name", ["mse", "bce", "cce"])
def test_linear_scores(
    losses: dict[str, Loss], name: str, n: int, dim: int, penalty: float
) -> None:
    loss = losses[name]
    case = _case(n, dim, loss.channels, torch.float64)
    names = ("features", "intercept", "start", "weight", "rate")

    def by_descend(c: Case) -> Tensor:
        return descend(_objective(loss, c), c["start"], c["rate"], STEPS, penalty)

    def by_backward(c: Case) -> Tensor:
        return _by_double_backward(_objective(loss, c), c["start"], c["rate"], STEPS, penalty)

    closed = _with_gradients(lambda c: _closed(loss, c, penalty), case, names)
    assert float((closed["user"] - case["start"]).abs().max()) > 0.05  # it does move
    _agree(closed, _with_gradients(by_descend, case, names), 1e-10)
    _agree(closed, _with_gradients(by_backward, case, names), 1e-10)
    single = {key: value.float() for key, value in case.items()}
    rough = _with_gradients(lambda c: _closed(loss, c, penalty), single, names)
    _agree({key: value.double() for key, value in rough.items()}, closed, 2e-4)


def test_gradients_against_finite_differences(losses: dict[str, Loss]) -> None:
    case = _case(2, 5, 1, torch.float64)

    def run(features: Tensor, weight: Tensor, start: Tensor) -> Tensor:
        changed = {**case, "features": features, "weight": weight, "start": start}
        return _closed(losses["bce"], changed, 0.3)

    inputs = [case[name].clone().requires_grad_() for name in ("features", "weight", "start")]
    assert torch.autograd.gradcheck(run, inputs)


def test_every_step_is_rounded() -> None:
    """`rounding` is applied to each iterate, so a coarse one changes the path."""
    seen: list[Tensor] = []

    def coarse(value: Tensor) -> Tensor:
        seen.append(value)
        return (value * 4).round() / 4

    start = torch.zeros(1, 2).double()
    target = torch.tensor([1.0, -3.0]).double()
    rate = torch.tensor([0.2]).double()
    user = descend(lambda u: ((u - target) ** 2).sum(1), start, rate, 7, 0.0, coarse)
    assert len(seen) == 7
    assert torch.equal(user, (user * 4).round() / 4)
    plain = descend(lambda u: ((u - target) ** 2).sum(1), start, rate, 7)
    torch.testing.assert_close(plain, target[None] * (1 - 0.6**7))


def test_rows_are_independent(losses: dict[str, Loss]) -> None:
    case = _case(2, 5, 1, torch.float64)
    together = _closed(losses["mse"], case, 0.0)
    for row in range(ROWS):
        single = _closed(losses["mse"], {k: v[row : row + 1] for k, v in case.items()}, 0.0)
        torch.testing.assert_close(single, together[row : row + 1])
