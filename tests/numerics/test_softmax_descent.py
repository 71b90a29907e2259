"""The softmax descent is gradient descent, and its repeat backward pass equals autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from dips.numerics.descent import descend
from dips.numerics.softmax_descent import AllItems, InnerProblem, SoftmaxDescent, descend_softmax

ROWS, ITEMS, DIM, STEPS = 3, 9, 5, 6
KEPT = torch.tensor([[1, 4], [2, 2], [8, 0]])
REPEAT = pytest.mark.parametrize("repeat", [False, True])
PENALTY = pytest.mark.parametrize("penalty", [0.0, 0.7])
Case = dict[str, Tensor]
Run = Callable[[AllItems, InnerProblem], Tensor]


def _case(repeat: bool, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "table": (ITEMS, DIM),
        "bias": (ITEMS,),
        "weight": (ROWS, 2),
        "start": (ROWS, DIM + ITEMS * repeat),
    }
    shapes |= {"repeat_scale": ()} if repeat else {}
    made = {
        name: torch.randn(shape, generator=generator).double() for name, shape in shapes.items()
    }
    return made | {"weight": made["weight"].abs()}


def _rate(case: Case) -> Tensor:
    return torch.tensor([0.3, 0.1, 0.05], dtype=case["table"].dtype)


def _features(case: Case) -> Tensor:
    """[items, dim] written out."""
    repeat = (
        case["repeat_scale"] * torch.eye(ITEMS, dtype=case["table"].dtype)
        if "repeat_scale" in case
        else None
    )
    return case["table"] if repeat is None else torch.cat([case["table"], repeat], 1)


def _given(case: Case, penalty: float) -> tuple[AllItems, InnerProblem]:
    feature_sum = (_features(case)[KEPT] * case["weight"][:, :, None]).sum(1)
    problem = InnerProblem(feature_sum, case["weight"].sum(1), case["start"], _rate(case), penalty)
    return AllItems(case["table"], case["bias"], case.get("repeat_scale")), problem


def _plain(items: AllItems, problem: InnerProblem) -> Tensor:
    return descend_softmax(items, problem, STEPS)


def _fast(items: AllItems, problem: InnerProblem) -> Tensor:
    user: Tensor = SoftmaxDescent.apply(*items, *problem, STEPS)[0]  # type: ignore[no-untyped-call]
    return user


def _by_objective(case: Case, penalty: float) -> Tensor:
    def value(user: Tensor) -> Tensor:
        log_probability = functional.log_softmax(user @ _features(case).T + case["bias"], -1)
        return -(log_probability.gather(1, KEPT) * case["weight"]).sum(1)

    return descend(value, case["start"], _rate(case), STEPS, penalty)


def _value(user: Tensor) -> Tensor:
    """Return a number that depends on every entry differently."""
    return (user * torch.arange(user.numel()).view_as(user).cos()).sum() + (user**2).sum()


def _gradients(run: Run, penalty: float) -> Callable[[Case], Case]:
    return grad(lambda case: _value(run(*_given(case, penalty))))


@REPEAT
@PENALTY
def test_descend_softmax_is_gradient_descent(repeat: bool, penalty: float) -> None:
    case = _case(repeat)
    user = _plain(*_given(case, penalty))
    assert float((user - case["start"]).abs().max()) > 0.05  # it does move
    torch.testing.assert_close(user, _by_objective(case, penalty), atol=1e-10, rtol=1e-10)
    other = grad(lambda case: _value(_by_objective(case, penalty)))(case)
    for name, value in _gradients(_plain, penalty)(case).items():
        torch.testing.assert_close(value, other[name], atol=1e-10, rtol=1e-10, msg=name)


@REPEAT
@PENALTY
def test_the_backward_pass_equals_autograd(repeat: bool, penalty: float) -> None:
    case = _case(repeat)
    plain, slopes = _plain(*_given(case, penalty)), _gradients(_plain, penalty)(case)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-4)):
        rounded = {name: value.to(dtype) for name, value in case.items()}
        close = {"atol": tolerance, "rtol": tolerance, "check_dtype": False}
        torch.testing.assert_close(_fast(*_given(rounded, penalty)), plain, **close)
        for name, value in _gradients(_fast, penalty)(rounded).items():
            assert slopes[name].any()
            torch.testing.assert_close(value, slopes[name], **close, msg=name)


@REPEAT
def test_vmap_over_runs_equals_each_run(repeat: bool) -> None:
    cases = [_case(repeat, seed) for seed in range(3)]
    together = {name: torch.stack([case[name] for case in cases]) for name in cases[0]}
    found = vmap(_gradients(_fast, 0.7))(together)
    for run, case in enumerate(cases):
        for name, value in _gradients(_plain, 0.7)(case).items():
            torch.testing.assert_close(found[name][run], value, atol=1e-10, rtol=1e-10, msg=name)


def test_a_second_derivative_is_refused() -> None:
    """The backward pass has no derivative of its repeat."""
    items, problem = _given(_case(True), 0.0)
    start = problem.start.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        _value(_fast(items, problem._replace(start=start))), start, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
