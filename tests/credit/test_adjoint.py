"""The effect of a weight is the derivative of the loss in it: twice checked, in every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.credit.adjoint import (
    Effect,
    Listwise,
    Path,
    Quadratic,
    Struck,
    additive,
    effect_of,
    path_of,
    path_worth,
    worth,
)
from dips.numerics.chunks import PIECE
from dips.recommender.base import Evidence, Recommender
from dips.recommender.sketch_filter import outcomes
from dips.recommender.stacked import StackedRecommenders

Make, MakeCase = Callable[..., Recommender], Callable[..., Any]
TIGHT = {"atol": 1e-10, "rtol": 1e-10}
FORMS = [
    ("dot", "mse", Quadratic),
    ("dot", "bce", Path),
    ("dot", "cce", Path),
    ("dot", "softmax", Listwise),
    ("repeat_feature", "softmax", Listwise),
    ("recency_decay", "softmax", Listwise),
    ("separate_input", "softmax", Listwise),
    ("filter_sketch", "softmax", Struck),
    ("mlp", "mse", Path),
    ("mlp", "bce", Path),
    ("mlp", "softmax", Path),
]
KINDS = [form[:2] for form in FORMS]


def _wide(case: Any) -> tuple[Evidence, int]:
    """The sketch with the other interactions in it, weightless; and where these start."""
    past = case.evidence
    weight = torch.cat([past.weight, torch.zeros_like(case.other_ratings)], 1)
    item = torch.cat([past.item, case.others], 1)
    rating = torch.cat([past.rating, case.other_ratings], 1)
    age = torch.cat([past.age, case.other_ages], 1)
    often = torch.cat([past.repeats, case.other_repeats], 1)
    return Evidence(item, rating, weight, past.slots, age, often), past.item.shape[1]


def _loss(model: Recommender, past: Evidence, case: Any) -> Tensor:
    return outcomes(model, model.read(past), past, case.item[:, None], case.rating[:, None])[:, 0]


@pytest.mark.parametrize("pull", [0.0, 0.3])
@pytest.mark.parametrize(("kind", "loss", "form"), FORMS)
def test_effects_are_derivatives(
    make: Make, case: MakeCase, kind: str, loss: str, form: type[Effect], pull: float
) -> None:
    """Autograd and finite differences through `read`; items in the sketch and outside."""
    model = make(kind, loss, prior_penalty=pull)
    given = case(distinct=kind == "filter_sketch")  # who is struck out once cannot be so twice
    wide, _ = _wide(given)
    value, effect = effect_of(model, given.evidence, given.item, given.rating)
    assert isinstance(effect, form)
    assert additive(effect) == (form not in (Path, Struck))
    mine = worth(model, effect, wide.item, wide.rating, wide.age, wide.repeats)
    torch.testing.assert_close(value, _loss(model, wide, given), **TIGHT)

    weight = wide.weight.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(_loss(model, wide._replace(weight=weight), given).sum(), weight)
    torch.testing.assert_close(mine, slopes, **TIGHT)
    assert float(mine.abs().amin(0).max()) > 1e-4
    step = 1e-5
    for column in range(wide.item.shape[1]):
        nudge = torch.zeros_like(wide.weight)
        nudge[:, column] = step
        ahead = _loss(model, wide._replace(weight=wide.weight + nudge), given)
        behind = _loss(model, wide._replace(weight=wide.weight - nudge), given)
        torch.testing.assert_close(
            mine[:, column], (ahead - behind) / (2 * step), atol=1e-7, rtol=1e-6
        )


def test_what_is_predicted_is_never_struck_out(make: Make, case: MakeCase) -> None:
    """Of its own weight it earns what it tells, and no chance."""
    model, given = make("filter_sketch", "softmax"), case(distinct=True)
    given.others[:, 1] = given.item
    wide, _ = _wide(given)
    _, effect = effect_of(model, given.evidence, given.item, given.rating)
    mine = worth(model, effect, wide.item, wide.rating, wide.age, wide.repeats)
    weight = wide.weight.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(_loss(model, wide._replace(weight=weight), given).sum(), weight)
    torch.testing.assert_close(mine, slopes, **TIGHT)


@pytest.mark.parametrize("pull", [0.0, 0.3])
@pytest.mark.parametrize(
    ("kind", "loss"), [kind for kind in KINDS if kind[0] not in ("mlp", "filter_sketch")]
)
def test_closed_forms_are_the_path(
    make: Make, case: MakeCase, kind: str, loss: str, pull: float
) -> None:
    for n in (1, 3, 9):
        model, given = make(kind, loss, prior_penalty=pull), case(n=n)
        value, effect = effect_of(model, given.evidence, given.item, given.rating)
        other, path = path_of(model, given.evidence, given.item, given.rating)
        torch.testing.assert_close(value, other, **TIGHT)
        others = (given.others, given.other_ratings, given.other_ages, given.other_repeats)
        mine = worth(model, effect, *others)
        theirs = path_worth(model, path, *others)
        torch.testing.assert_close(mine, theirs, **TIGHT)


@pytest.mark.parametrize("loss", ["mse", "bce", "cce", "softmax"])
def test_effects_tend_to_the_influence_function(make: Make, case: MakeCase, loss: str) -> None:
    """- grad l_next' (H + 2 pull I)^-1 grad l_i at the optimum, written out."""
    given, pull = case(), 0.5
    wide, _ = _wide(given)
    gaps = []
    for steps in (5, 50, 800):
        model = make("dot", loss, prior_penalty=pull, inner_steps=steps)
        _, effect = effect_of(model, given.evidence, given.item, given.rating)
        mine = worth(model, effect, wide.item, wide.rating, wide.age, wide.repeats)
        user = model.read(wide)
        expected = torch.zeros_like(mine)
        for row in range(len(user)):

            def total(vector: Tensor, model: Recommender = model, row: int = row) -> Tensor:
                past = [field[row : row + 1] for field in wide]
                losses = (model.losses(vector[None], past[0], past[1]) * past[2]).sum()
                return losses + pull * ((vector - model.user_prior) ** 2).sum()

            hessian = torch.autograd.functional.hessian(total, user[row])
            slopes = model.gradients(user, wide.item, wide.rating)[row]
            ahead = model.gradients(user, given.item[:, None], given.rating[:, None])[row, 0]
            expected[row] = -slopes @ torch.linalg.solve(hessian, ahead)
        gaps.append(float((mine - expected).abs().max()))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-9


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_a_stack_is_each_model_alone(make: Make, case: MakeCase, kind: str, loss: str) -> None:
    models = [make(kind, loss, seed=seed, inner_lr=0.1 - seed / 50) for seed in range(2)]
    cases = [case(seed=seed) for seed in range(2)]

    def ask(model: Recommender, *fields: Tensor) -> tuple[Tensor, Effect, Tensor]:
        *past, item, rating, others, ratings, ages, often = fields
        value, effect = effect_of(model, Evidence(*past), item, rating)
        return value, effect, worth(model, effect, others, ratings, ages, often)

    flat = [[*one.evidence, *one[1:]] for one in cases]
    together = StackedRecommenders.of(models).call(
        ask, *(torch.stack(pair) for pair in zip(*flat, strict=True))
    )
    assert not together[2].requires_grad
    for run, model in enumerate(models):
        alone = ask(model, *flat[run])
        assert isinstance(together[1], type(alone[1]))
        torch.testing.assert_close(together[2][run], alone[2], **TIGHT)
        torch.testing.assert_close(together[0][run], alone[0], **TIGHT)
        for mine, other in zip(together[1], alone[1], strict=True):
            torch.testing.assert_close(mine[run], other, **TIGHT)


@pytest.mark.parametrize(
    "kind", ["dot", "repeat_feature", "recency_decay", "separate_input", "mlp"]
)
def test_pieces_are_the_whole_and_small(
    make: Make, case: MakeCase, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing over all items is ever wider than one prediction, if that is all that fits."""
    model, given = make(kind, "softmax"), case()
    values, effect = effect_of(model, given.evidence, given.item, given.rating)
    whole = (values, *effect, worth(model, effect, given.others, given.other_ratings))
    monkeypatch.setitem(PIECE, "cpu", 1)
    rows, predict_all = [], model.predict_all
    monkeypatch.setattr(
        model, "predict_all", lambda user: rows.append(len(user)) or predict_all(user)
    )
    values, effect = effect_of(model, given.evidence, given.item, given.rating)
    cut = (values, *effect, worth(model, effect, given.others, given.other_ratings))
    assert set(rows) == {1}
    for mine, other in zip(cut, whole, strict=True):
        torch.testing.assert_close(mine, other, **TIGHT)


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_single_precision_is_close(make: Make, case: MakeCase, kind: str, loss: str) -> None:
    """And trainable parameters leave no graph behind."""
    given, results = case(), []
    for dtype in (torch.float64, torch.float32):
        model = make(kind, loss).to(dtype).requires_grad_()
        one = torch.utils._pytree.tree_map(
            lambda leaf, dtype=dtype: leaf.to(dtype) if leaf.is_floating_point() else leaf, given
        )
        value, effect = effect_of(model, one.evidence, one.item, one.rating)
        results.append((value, worth(model, effect, one.others, one.other_ratings)))
        assert not any(field.requires_grad for field in (*effect, *results[-1]))
        numbers = [field for field in (*effect, *results[-1]) if field.is_floating_point()]
        assert all(field.dtype == dtype for field in numbers)
    for exact, single in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), exact, atol=2e-5, rtol=2e-4)
