"""The inner loop over all items in Triton against the one in torch: values and every gradient.

Programs run in Triton's interpreter, or on a GPU where there is one; without triton nothing runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from dips.credit.adjoint import loss_and_adjoint
from dips.kernels import dispatch, softmax_cuda
from dips.numerics import softmax_descent
from dips.numerics.softmax_descent import AllItems
from dips.recommender.base import Evidence
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, Loss
from dips.recommender.stacked import StackedRecommenders

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
pytestmark = pytest.mark.skipif(not dispatch.installed("triton"), reason="needs triton")

DEVICE = "cuda" if CUDA else "cpu"
STEPS = 4
Dot = Callable[..., DotProduct]


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs for the device of the tests, as exact as float32."""
    monkeypatch.setattr(dispatch, "SOFTMAX_DEVICES", {DEVICE})
    monkeypatch.setattr(softmax_cuda, "PRECISION", "ieee")


def _case(runs: int, rows: int, items: int, dim: int, has_repeats: bool) -> list[Tensor | None]:
    """table, bias, repeat_scale, feature_sum, weight, start and rate."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(rows))
    width = dim + items * has_repeats
    made = [
        draw(runs, items, dim) / 2, draw(runs, items) / 3,
        1 + draw(runs) / 5 if has_repeats else None,
        draw(runs, rows, width) / 2, 1 + draw(runs, rows).abs(), draw(runs, rows, width) / 3,
        0.05 + draw(runs, rows).abs() / 10,
    ]  # fmt: skip
    return [None if value is None else value.to(DEVICE) for value in made]


def _gradients(way: Any, penalty: float, case: list[Tensor | None]) -> Any:
    """Value and gradients in all but the rate, of all runs."""
    given = [number for number, value in enumerate(case[:-1]) if value is not None]

    def value(*tensors: Tensor | None) -> Tensor:
        user = way.apply(*tensors, penalty, STEPS)[0]
        return (user * torch.arange(user.numel(), device=DEVICE).view_as(user).cos()).sum()

    axes = tuple(None if value is None else 0 for value in case)
    return vmap(grad_and_value(value, argnums=tuple(given)), in_dims=axes)(*case)


@pytest.mark.parametrize("has_repeats", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 0.1])
@pytest.mark.parametrize(("runs", "rows", "items", "dim"), [(1, 3, 9, 5), (2, 37, 150, 8)])
def test_is_the_descent_in_torch(
    has_repeats: bool, penalty: float, runs: int, rows: int, items: int, dim: int
) -> None:
    case = _case(runs, rows, items, dim, has_repeats)
    known = _gradients(softmax_descent.SoftmaxDescent, penalty, case)
    found = _gradients(softmax_cuda.SoftmaxDescent, penalty, case)
    torch.testing.assert_close(found, known, atol=2e-5, rtol=2e-5)
    _, value = known
    assert float(value.abs().min()) > 0.01  # there is something to compare


def test_one_run_is_a_stack_of_one() -> None:
    case = [value for value in _case(1, 20, 30, 4, has_repeats=True) if value is not None]
    single = softmax_cuda.SoftmaxDescent.apply(*(value[0] for value in case), 0.1, STEPS)  # type: ignore[no-untyped-call]
    stacked = vmap(lambda *given: softmax_cuda.SoftmaxDescent.apply(*given, 0.1, STEPS)[0])(*case)  # type: ignore[no-untyped-call]
    assert torch.equal(single[0], stacked[0])


def test_what_runs_share_is_given_to_each() -> None:
    table, bias, _, feature_sum, weight, start, rate = _case(2, 5, 9, 3, has_repeats=False)
    assert table is not None
    assert bias is not None

    def end(*rows: Tensor) -> Tensor:
        user: Tensor = softmax_cuda.SoftmaxDescent.apply(
            table[0], bias[0], None, *rows, 0.0, STEPS
        )[0]  # type: ignore[no-untyped-call]
        return user

    rows = [feature_sum, weight, start, rate]
    each = [end(*(value[run] for value in rows if value is not None)) for run in range(2)]
    torch.testing.assert_close(vmap(end)(*rows), torch.stack(each))


def test_logarithm_of_the_sum() -> None:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(1))
    given = [draw(50, 6).to(DEVICE), draw(50).to(DEVICE), draw(9, 6).to(DEVICE)]
    mass = draw(9).to(DEVICE)

    def known(table: Tensor, bias: Tensor, user: Tensor) -> Tensor:
        return (AllItems(table, bias, None).logits(user).logsumexp(1) * mass).sum()

    def found(*tensors: Tensor) -> Tensor:
        norm: Tensor = softmax_cuda.LogSumExp.apply(*tensors)[0]  # type: ignore[no-untyped-call]
        return (norm * mass).sum()

    each = [grad_and_value(way, argnums=(0, 1, 2))(*given) for way in (found, known)]
    torch.testing.assert_close(*each, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "repeat_feature", "filter_sketch"])
def test_recommender_and_credit_are_the_same(
    kind: str, dot: Dot, losses: dict[str, Loss], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "has_cpu_softmax", lambda _: False)  # it would be used first
    rest = {
        "repeat_feature": kind == "repeat_feature",
        "recency_decay": True,
        "tie_embeddings": False,
        "inner_lr": 0.3,
        "prior_penalty": 0.05,
    }
    models = [dot(losses["softmax"], items=20, seed=seed, **rest) for seed in range(2)]
    assert isinstance(models[0].loss, FullSoftmax)
    for model in models:
        model.masks_sketch = kind == "filter_sketch"
    stack = StackedRecommenders.of(models, DEVICE)
    draw = torch.Generator().manual_seed(5)
    item = torch.randint(20, (2, 7, 3), generator=draw).to(DEVICE)
    weight = torch.rand(2, 7, 3, generator=draw).to(DEVICE)
    target = torch.randint(20, (2, 7), generator=draw).to(DEVICE)
    evidence = Evidence(
        item, torch.ones_like(weight), weight, torch.full_like(target, 3), weight * 9,
        1 + (weight * 4).floor(),
    )  # fmt: skip

    def learn(model: DotProduct, *fields: Tensor) -> Any:
        *past, target = fields

        def loss(vector: Tensor) -> Tensor:
            user = model.read(Evidence(*past)) + vector
            return model.losses(user, target[:, None], target[:, None].float()).sum()

        at = torch.zeros_like(model.initial_user(len(target)))
        return *grad_and_value(loss)(at), loss_and_adjoint(
            model, Evidence(*past), target, target.float()
        )

    def all_of_it() -> Any:
        return stack.call(learn, *evidence, target)

    assert stack.template.fused
    found = all_of_it()
    monkeypatch.setattr(dispatch, "SOFTMAX_DEVICES", set())
    assert not stack.template.fused
    torch.testing.assert_close(found, all_of_it(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", ["plain", "repeat_feature", "filter_sketch"])
def test_losses_and_credit_of_a_linearised_inner_loop_are_the_same(
    kind: str, linearised: Callable[..., LinearisedDotProduct], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [
        linearised(items=20, seed=seed, repeat_feature=kind == "repeat_feature")
        for seed in range(2)
    ]
    for model in models:
        model.masks_sketch = kind == "filter_sketch"
    stack = StackedRecommenders.of(models, DEVICE)
    draw = torch.Generator().manual_seed(5)
    item = torch.randint(20, (2, 7, 3), generator=draw).to(DEVICE)
    weight = torch.rand(2, 7, 3, generator=draw).to(DEVICE)
    target = torch.randint(20, (2, 7), generator=draw).to(DEVICE)
    past = (item, weight, weight, torch.full_like(target, 3), weight * 9, torch.ones_like(weight))

    def credit(model: LinearisedDotProduct, *fields: Tensor) -> Any:
        *past, target = fields
        return loss_and_adjoint(model, Evidence(*past), target, target.float())

    def slopes() -> Any:
        state = {name: value.requires_grad_() for name, value in stack.state.items()
                 if name in ("vectors", "bias", "user_prior")}  # fmt: skip

        def loss(model: LinearisedDotProduct, *fields: Tensor) -> Tensor:
            *past, target = fields
            user = model.read(Evidence(*past))
            return model.losses(user, target[:, None], target[:, None].float()).sum()

        return torch.autograd.grad(stack.call(loss, *past, target).sum(), list(state.values()))

    launched, moments = [], softmax_cuda.moments
    monkeypatch.setattr(softmax_cuda, "moments", lambda *a: launched.append(1) or moments(*a))
    found = stack.call(credit, *past, target), slopes()
    assert len(launched) == 2
    monkeypatch.setattr(dispatch, "SOFTMAX_DEVICES", set())
    wanted = stack.call(credit, *past, target), slopes()
    assert len(launched) == 2
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)
