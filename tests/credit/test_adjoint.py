"""Entry gradients are derivatives of the loss in entry weights: by autograd and by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.credit.adjoint import (
    Adjoint,
    FilteredSoftmaxAdjoint,
    RepeatSoftmaxAdjoint,
    SoftmaxAdjoint,
    SquaredErrorAdjoint,
    TrajectoryAdjoint,
    entry_gradient,
    is_additive,
    loss_and_adjoint,
    trajectory_adjoint,
    trajectory_entry_gradient,
)
from dips.numerics.chunks import MAX_ELEMENTS
from dips.recommender.base import Evidence, Recommender
from dips.recommender.filtered_loss import prediction_losses
from dips.recommender.stacked import StackedRecommenders

Make, MakeCase = Callable[..., Recommender], Callable[..., Any]
TIGHT = {"atol": 1e-10, "rtol": 1e-10}
FORMS = [
    ("dot", "mse", SquaredErrorAdjoint),
    ("dot", "bce", TrajectoryAdjoint),
    ("dot", "cce", TrajectoryAdjoint),
    ("dot", "softmax", SoftmaxAdjoint),
    ("repeat_feature", "softmax", SoftmaxAdjoint),
    ("recency_decay", "softmax", SoftmaxAdjoint),
    ("untied", "softmax", SoftmaxAdjoint),
    ("filter_sketch", "softmax", FilteredSoftmaxAdjoint),
    ("mlp", "mse", TrajectoryAdjoint),
    ("mlp", "bce", TrajectoryAdjoint),
    ("mlp", "softmax", TrajectoryAdjoint),
    ("linearised", "softmax", SoftmaxAdjoint),
    ("linearised", "sampled", SoftmaxAdjoint),
    ("linearised-recency_decay", "softmax", SoftmaxAdjoint),
    ("linearised-untied", "sampled", SoftmaxAdjoint),
    ("linearised-filter_sketch", "softmax", FilteredSoftmaxAdjoint),
    ("linearised-filter_sketch", "sampled", FilteredSoftmaxAdjoint),
    ("linearised-repeat_feature", "softmax", RepeatSoftmaxAdjoint),
    ("linearised-repeat_feature", "sampled", RepeatSoftmaxAdjoint),
]
KINDS = [form[:2] for form in FORMS]
ONCE = ("filter_sketch", "linearised-filter_sketch", "linearised-repeat_feature")
"""Kinds whose scores depend on the entries themselves: on the filter, or on repeats."""


def _wide(case: Any) -> Evidence:
    """Return the sketch with the other interactions added at weight 0."""
    joined = [
        torch.cat(pair, 1)
        for pair in zip(case.evidence, case.others, strict=True)
        if pair[0].dim() > 1
    ]
    item, rating, weight, age, repeats = joined
    return Evidence(item, rating, weight, case.evidence.slots, age, repeats)


def _loss(model: Recommender, past: Evidence, case: Any) -> Tensor:
    return prediction_losses(
        model, model.read(past), past, case.item[:, None], case.rating[:, None]
    )[:, 0]


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize(("kind", "loss", "form"), FORMS)
def test_entry_gradients_are_derivatives(
    make: Make, case: MakeCase, kind: str, loss: str, form: type[Adjoint], penalty: float
) -> None:
    """Autograd and finite differences through `read`; items in the sketch and outside."""
    model = make(kind, loss, prior_penalty=penalty)
    given = case(distinct=kind in ONCE)  # an item is filtered only once
    wide = _wide(given)
    value, adjoint = loss_and_adjoint(model, given.evidence, given.item, given.rating)
    assert isinstance(adjoint, form)
    assert is_additive(adjoint) == (form in (SquaredErrorAdjoint, SoftmaxAdjoint))
    mine = entry_gradient(model, adjoint, wide)
    torch.testing.assert_close(value, _loss(model, wide, given), **TIGHT)

    weight = wide.weight.clone().requires_grad_()
    (derivatives,) = torch.autograd.grad(
        _loss(model, wide._replace(weight=weight), given).sum(), weight
    )
    torch.testing.assert_close(mine, derivatives, **TIGHT)
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


@pytest.mark.parametrize("kind", ONCE)
def test_an_entry_may_be_the_predicted_item(make: Make, case: MakeCase, kind: str) -> None:
    """It is never filtered: its entry gradient has no term of its probability."""
    model, given = make(kind, "softmax"), case(distinct=True)
    given.others.item[:, 1] = given.item
    wide = _wide(given)
    _, adjoint = loss_and_adjoint(model, given.evidence, given.item, given.rating)
    mine = entry_gradient(model, adjoint, wide)
    weight = wide.weight.clone().requires_grad_()
    (derivatives,) = torch.autograd.grad(
        _loss(model, wide._replace(weight=weight), given).sum(), weight
    )
    torch.testing.assert_close(mine, derivatives, **TIGHT)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize(
    ("kind", "loss"), [kind for kind in KINDS if kind[0] not in ("mlp", *ONCE)]
)
def test_closed_forms_equal_autograd_through_the_trajectory(
    make: Make, case: MakeCase, kind: str, loss: str, penalty: float
) -> None:
    for n in (1, 3, 9):
        model, given = make(kind, loss, prior_penalty=penalty), case(n=n)
        value, adjoint = loss_and_adjoint(model, given.evidence, given.item, given.rating)
        other, trajectory = trajectory_adjoint(model, given.evidence, given.item, given.rating)
        torch.testing.assert_close(value, other, **TIGHT)
        mine = entry_gradient(model, adjoint, given.others)
        theirs = trajectory_entry_gradient(model, trajectory, given.others)
        torch.testing.assert_close(mine, theirs, **TIGHT)


@pytest.mark.parametrize("loss", ["softmax", "sampled"])
def test_duplicates_and_the_predicted_item_share_a_repeat_score(
    make: Make, case: MakeCase, loss: str
) -> None:
    """Entries of one item in the sketch, newer ones outside it, and an entry that is predicted."""
    model, given = make("linearised-repeat_feature", loss, recency_decay=True), case(n=4)
    item = torch.tensor([[1, 5, 1, 2, 1, 7, 2, 5]]).expand(5, -1)
    past, others = given.evidence, given.others
    past = past._replace(item=item[:, :4], weight=past.weight.clamp_min(0.1))
    given = given._replace(evidence=past, item=item[:, 1], others=others._replace(item=item[:, 4:]))
    wide = _wide(given)
    value, adjoint = loss_and_adjoint(model, past, given.item, given.rating)
    mine = entry_gradient(model, adjoint, wide)
    torch.testing.assert_close(value, _loss(model, wide, given), **TIGHT)
    weight = wide.weight.clone().requires_grad_()
    (derivatives,) = torch.autograd.grad(
        _loss(model, wide._replace(weight=weight), given).sum(), weight
    )
    torch.testing.assert_close(mine, derivatives, **TIGHT)
    assert bool((mine[:, [1, 7]] < 0).all())  # the predicted item gets a higher score
    for column in range(4):  # weights above 0
        nudge = torch.zeros_like(wide.weight)
        nudge[:, column] = 1e-5
        ahead, behind = (
            _loss(model, wide._replace(weight=wide.weight + sign * nudge), given)
            for sign in (1, -1)
        )
        slope = (ahead - behind) / 2e-5
        torch.testing.assert_close(mine[:, column], slope, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("loss", ["mse", "bce", "cce", "softmax"])
def test_entry_gradients_tend_to_the_influence_function(
    make: Make, case: MakeCase, loss: str
) -> None:
    """Eq. 11, written out: - grad l_next' (H + 2 penalty I)^-1 grad l_i at the optimum."""
    given, penalty = case(), 0.5
    wide = _wide(given)
    gaps = []
    for steps in (5, 50, 800):
        model = make("dot", loss, prior_penalty=penalty, inner_steps=steps)
        _, adjoint = loss_and_adjoint(model, given.evidence, given.item, given.rating)
        mine = entry_gradient(model, adjoint, wide)
        user = model.read(wide)
        expected = torch.zeros_like(mine)
        for row in range(len(user)):

            def total(vector: Tensor, model: Recommender = model, row: int = row) -> Tensor:
                past = [field[row : row + 1] for field in wide]
                losses = (model.losses(vector[None], past[0], past[1]) * past[2]).sum()
                return losses + penalty * ((vector - model.user_prior) ** 2).sum()

            hessian = torch.autograd.functional.hessian(total, user[row])
            derivatives = model.loss_gradients(user, wide.item, wide.rating)[row]
            ahead = model.loss_gradients(user, given.item[:, None], given.rating[:, None])[row, 0]
            expected[row] = -derivatives @ torch.linalg.solve(hessian, ahead)
        gaps.append(float((mine - expected).abs().max()))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-9


def _inner_gradients(model: Recommender, user: Tensor, item: Tensor) -> Tensor:
    """Return gradients of inner losses [rows, n, dim] in the user vectors, entry by entry."""

    def one(user: Tensor, item: Tensor) -> Tensor:
        return model.inner_loss(user[None], item[None], item[None])[0]

    found: Tensor = torch.func.vmap(torch.func.jacrev(one))(user, item)
    return found


def test_linearised_entry_gradients_tend_to_the_influence_function(
    make: Make, case: MakeCase
) -> None:
    """Eq. 11 with the Hessian of the inner loss, which does not depend on the user vector."""
    given, penalty = case(), 0.5
    gaps = []
    for steps in (5, 50, 800):
        model = make("linearised-untied", "softmax", prior_penalty=penalty, inner_steps=steps)
        wide = _wide(given)._replace(weight=given.evidence.weight.new_ones(5, 7))
        _, adjoint = loss_and_adjoint(model, wide, given.item, given.rating)
        user = model.read(wide)
        ahead = model.loss_gradients(user, given.item[:, None], given.rating[:, None])[:, 0]
        _, covariance = model.moments
        system = 7 * covariance + 2 * penalty * torch.eye(6).double()
        solved = torch.linalg.solve(system, ahead.T).T
        expected = -(_inner_gradients(model, user, wide.item) * solved[:, None]).sum(2)
        gaps.append(float((entry_gradient(model, adjoint, wide) - expected).abs().max()))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-9


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_stacked_models_equal_single_models(
    make: Make, case: MakeCase, kind: str, loss: str
) -> None:
    models = [make(kind, loss, seed=seed, inner_lr=0.1 - seed / 50) for seed in range(2)]
    cases = [case(seed=seed) for seed in range(2)]

    def compute(model: Recommender, one: Any) -> tuple[Tensor, Adjoint, Tensor]:
        value, adjoint = loss_and_adjoint(model, one.evidence, one.item, one.rating)
        return value, adjoint, entry_gradient(model, adjoint, one.others)

    stacked = torch.utils._pytree.tree_map(lambda *pair: torch.stack(pair), *cases)
    together = StackedRecommenders.of(models).call(compute, stacked)
    assert not together[2].requires_grad
    for run, model in enumerate(models):
        single = compute(model, cases[run])
        assert isinstance(together[1], type(single[1]))
        torch.testing.assert_close(together[2][run], single[2], **TIGHT)
        torch.testing.assert_close(together[0][run], single[0], **TIGHT)
        for mine, other in zip(together[1], single[1], strict=True):
            torch.testing.assert_close(mine[run], other, **TIGHT)


@pytest.mark.parametrize(
    "kind",
    ["dot", "repeat_feature", "recency_decay", "untied", "mlp", "linearised", *ONCE[1:]],
)
def test_chunks_give_the_same_and_stay_small(
    make: Make, case: MakeCase, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions are computed one by one, if only one fits."""
    model, given = make(kind, "softmax"), case()
    widest = "losses" if kind.startswith("linearised") else "predict_all"
    values, adjoint = loss_and_adjoint(model, given.evidence, given.item, given.rating)
    whole = (values, *adjoint, entry_gradient(model, adjoint, given.others))
    monkeypatch.setitem(MAX_ELEMENTS, "cpu", 1)
    rows, compute = [], getattr(model, widest)
    monkeypatch.setattr(
        model, widest, lambda user, *rest: rows.append(len(user)) or compute(user, *rest)
    )
    values, adjoint = loss_and_adjoint(model, given.evidence, given.item, given.rating)
    cut = (values, *adjoint, entry_gradient(model, adjoint, given.others))
    assert set(rows) == {1}
    for mine, other in zip(cut, whole, strict=True):
        torch.testing.assert_close(mine, other, **TIGHT)


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_single_precision_is_close(make: Make, case: MakeCase, kind: str, loss: str) -> None:
    """Also with trainable parameters, nothing carries a gradient."""
    given, results = case(), []
    for dtype in (torch.float64, torch.float32):
        model = make(kind, loss).to(dtype).requires_grad_()
        one = torch.utils._pytree.tree_map(
            lambda leaf, dtype=dtype: leaf.to(dtype) if leaf.is_floating_point() else leaf, given
        )
        value, adjoint = loss_and_adjoint(model, one.evidence, one.item, one.rating)
        results.append((value, entry_gradient(model, adjoint, one.others)))
        assert not any(field.requires_grad for field in (*adjoint, *results[-1]))
        numbers = [field for field in (*adjoint, *results[-1]) if field.is_floating_point()]
        assert all(field.dtype == dtype for field in numbers)
    for exact, single in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), exact, atol=2e-5, rtol=2e-4)


SEEN = torch.tensor([[0, 3, -1, 5], [-1] * 4, [1, 1, 2, 6], [7, 4, 5, 0], [2, 3, -1, -1]])
"""Items that were met before, [rows, n]; -1 pads."""


@pytest.mark.parametrize(
    ("kind", "loss", "form"),
    [
        ("untied", "softmax", SoftmaxAdjoint),
        ("recency_decay", "softmax", SoftmaxAdjoint),
        ("linearised-untied", "softmax", SoftmaxAdjoint),
        ("linearised", "sampled", SoftmaxAdjoint),
        ("mlp", "softmax", TrajectoryAdjoint),
    ],
)
def test_entry_gradients_have_no_term_of_the_filter_of_seen_items(
    make: Make, case: MakeCase, kind: str, loss: str, form: type[Adjoint]
) -> None:
    """Finite differences of the loss in each entry weight; what is filtered stays filtered.

    Entries of the sketch are among the seen items, and so are some targets.
    """
    model, given = make(kind, loss), case(distinct=True)
    model.masks_seen = True
    seen = torch.cat([SEEN, given.evidence.item, given.item[:, None]], 1)
    seen[3, -1] = -1
    value, adjoint = loss_and_adjoint(model, given.evidence, given.item, given.rating, seen)
    assert isinstance(adjoint, form)
    mine = entry_gradient(model, adjoint, given.evidence)

    def dense(past: Evidence) -> Tensor:
        every = torch.arange(model.items)
        gone = (seen[:, :, None] == every).any(1) & (every != given.item[:, None])
        if loss == "sampled":
            gone, own = gone[:, model.negatives], model.negatives == given.item[:, None]
            scores = model.predict_some(model.read(past), model.negatives) - model.log_q
            scores = scores.masked_fill(gone | own, -torch.inf)
            score = model.predict(model.read(past), given.item[:, None])
            return torch.cat([scores, score], 1).logsumexp(1) - score[:, 0]
        scores = model.predict_all(model.read(past)).masked_fill(gone, -torch.inf)
        return scores.logsumexp(1) - scores.gather(1, given.item[:, None])[:, 0]

    past = given.evidence
    torch.testing.assert_close(value, dense(past), **TIGHT)
    for column in range(past.item.shape[1]):
        nudge = torch.zeros_like(past.weight)
        nudge[:, column] = 1e-5
        ahead = dense(past._replace(weight=past.weight + nudge))
        behind = dense(past._replace(weight=past.weight - nudge))
        torch.testing.assert_close(mine[:, column], (ahead - behind) / 2e-5, atol=1e-7, rtol=1e-6)
    plain, _ = loss_and_adjoint(model, given.evidence, given.item, given.rating)
    assert bool((plain > value + 1e-4).any())
