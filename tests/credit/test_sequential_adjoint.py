"""Entry gradients of recommenders that read in order: autograd, differences, and places in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.credit.adjoint import entry_gradient, is_additive, loss_and_adjoint
from dips.credit.sequential_adjoint import MAX_CHANGE, SequentialAdjoint
from dips.numerics.chunks import MAX_ELEMENTS
from dips.recommender import linear_scores
from dips.recommender.base import Evidence, Recommender
from dips.recommender.repeat_scores import weighted_repeats
from dips.recommender.stacked import StackedRecommenders

Make = Callable[..., Recommender]
TIGHT = {"atol": 1e-10, "rtol": 1e-10}
KINDS = [
    ("gru", "softmax"),
    ("gru-cosine", "sampled"),
    ("gru-repeat_feature", "softmax"),
    ("gru-filter_sketch", "softmax"),
    ("sasrec", "softmax"),
    ("sasrec-cosine", "softmax"),
    ("sasrec-repeat_feature", "sampled"),
]
LENGTH, KEPT = 7, torch.tensor([[0, 2, 3], [1, 2, 6], [0, 4, 5], [4, 5, 6], [-1, -1, 1]])
"""Length of the histories, and the positions in the sketch of each; -1 is an empty slot."""


def _history(seed: int = 0) -> tuple[Evidence, Tensor]:
    """Return whole histories [5, 7] with weight 1 in the sketch and 0 outside, and targets."""
    generator = torch.Generator().manual_seed(seed)
    item = torch.rand(5, 8, generator=generator).argsort(1)
    place = torch.arange(LENGTH)
    weight = (place[:, None] == KEPT[:, None, :]).any(2).double()
    age = (LENGTH - 1 - place).double().expand(5, -1)
    repeats = torch.randint(1, 4, (5, LENGTH), generator=generator).double()
    rating, slots = torch.ones(5, LENGTH).double(), weight.sum(1).long()
    return Evidence(item[:, :LENGTH], rating, weight, slots, age, repeats), item[:, -1]


def _sketch(history: Evidence) -> Evidence:
    """Return the entries of weight 1, [5, 3]; the oldest first, empty slots last."""
    order = torch.where(KEPT >= 0, KEPT, LENGTH).argsort(1)
    position = KEPT.gather(1, order)
    there = (position >= 0).double()
    some = [field.gather(1, position.clamp_min(0)) if field.dim() > 1 else field
            for field in history]  # fmt: skip
    return Evidence(*some)._replace(weight=there, age=some[4] * there)


def _loss(model: Recommender, history: Evidence, target: Tensor) -> Tensor:
    user = model.read(history)
    return model.losses(user, target[:, None], torch.ones(5, 1).double())[:, 0]


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_entry_gradients_are_derivatives(make: Make, kind: str, loss: str) -> None:
    """Autograd and central differences through `read`; entries in the sketch and outside."""
    model, (history, target) = make(kind, loss), _history()
    value, adjoint = loss_and_adjoint(model, _sketch(history), target, target.double())
    assert isinstance(adjoint, SequentialAdjoint)
    assert not is_additive(adjoint)
    torch.testing.assert_close(value, _loss(model, history, target), **TIGHT)
    mine = entry_gradient(model, adjoint, history)

    weight = history.weight.clone().requires_grad_()
    (derivatives,) = torch.autograd.grad(
        _loss(model, history._replace(weight=weight), target).sum(), weight
    )
    torch.testing.assert_close(mine, derivatives, **TIGHT)
    inside = history.weight > 0
    assert float(mine[inside].abs().min()) > 1e-9
    assert float(mine[~inside].abs().max()) > 1e-2
    step = 1e-5
    for column in range(LENGTH):
        nudge = torch.zeros_like(history.weight)
        nudge[:, column] = step
        ahead, behind = (
            _loss(model, history._replace(weight=history.weight + sign * nudge), target)
            for sign in (1, -1)
        )
        slope = (ahead - behind) / (2 * step)
        smooth = ~inside[:, column] if "filter" in kind else slice(None)  # filters: next test
        torch.testing.assert_close(mine[smooth, column], slope[smooth], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "kind", ["gru-repeat_feature", "gru-filter_sketch", "sasrec-filter_sketch"]
)
def test_slopes_follow_the_changes_of_adding_and_removing_entries(
    make: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With plain weights, the slope of a repeat score is many times its change."""
    model, (history, target) = make(kind, "softmax"), _history()
    if "repeat" in kind:
        target = history.item[:, 2]
    _, adjoint = loss_and_adjoint(model, _sketch(history), target, target.double())
    change = torch.zeros_like(history.weight)
    for column in range(LENGTH):
        with_it, without = history.weight.clone(), history.weight.clone()
        with_it[:, column], without[:, column] = 1, 0
        change[:, column] = _loss(model, history._replace(weight=with_it), target)
        change[:, column] -= _loss(model, history._replace(weight=without), target)

    def error() -> float:
        return float((entry_gradient(model, adjoint, history) - change).norm() / change.norm())

    straight = error()
    monkeypatch.setattr(linear_scores, "straightened_repeats", lambda _, e: weighted_repeats(e))
    assert straight < 0.5 * error()


def test_a_filtered_target_has_a_bounded_gradient(make: Make) -> None:
    model, (history, _) = make("gru-filter_sketch", "softmax"), _history()
    target = history.item.gather(1, history.weight.argmax(1)[:, None])[:, 0]  # the oldest kept
    _, adjoint = loss_and_adjoint(model, _sketch(history), target, target.double())
    assert float(entry_gradient(model, adjoint, history).max()) == MAX_CHANGE


@pytest.mark.parametrize("kind", ["gru", "sasrec-repeat_feature"])
def test_entries_come_in_any_order(make: Make, kind: str) -> None:
    """Ages decide which entry is read when, and which is in the sketch. Empty slots are neither."""
    model, (history, target) = make(kind, "softmax"), _history()
    _, adjoint = loss_and_adjoint(model, _sketch(history), target, target.double())
    expected = entry_gradient(model, adjoint, history)
    mixed = torch.tensor([3, 0, 6, 5, 1, 4, 2])
    other = Evidence(*(field[:, mixed] if field.dim() > 1 else field for field in history))
    torch.testing.assert_close(entry_gradient(model, adjoint, other), expected[:, mixed], **TIGHT)
    few = Evidence(*(field[:, [1, 4]] if field.dim() > 1 else field for field in history))
    torch.testing.assert_close(entry_gradient(model, adjoint, few), expected[:, [1, 4]], **TIGHT)
    none = few._replace(age=torch.full((5, 2), float(LENGTH)).double())  # as of position -1
    assert bool(entry_gradient(model, adjoint, none).isfinite().all())


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_stacked_models_equal_single_models(make: Make, kind: str, loss: str) -> None:
    models = [make(kind, loss, seed=seed) for seed in range(2)]
    cases = [_history(seed) for seed in range(2)]

    def compute(
        model: Recommender, history: Evidence, sketch: Evidence, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        value, adjoint = loss_and_adjoint(model, sketch, target, target.double())
        return value, entry_gradient(model, adjoint, history)

    given = [(history, _sketch(history), target) for history, target in cases]
    stacked = torch.utils._pytree.tree_map(lambda *pair: torch.stack(pair), *given)
    together = StackedRecommenders.of(models).call(compute, *stacked)
    for run, model in enumerate(models):
        for mine, single in zip(together, compute(model, *given[run]), strict=True):
            torch.testing.assert_close(mine[run], single, **TIGHT)


def test_chunks_give_the_same(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions are computed one by one, if only one fits; nothing carries a gradient."""
    model, (history, target) = make("gru", "softmax").requires_grad_(), _history()

    def compute() -> tuple[Any, ...]:
        value, adjoint = loss_and_adjoint(model, _sketch(history), target, target.double())
        return value, entry_gradient(model, adjoint, history), *adjoint

    whole = compute()
    assert not any(field.requires_grad for field in whole)
    monkeypatch.setitem(MAX_ELEMENTS, "cpu", 1)
    rows, predict_all = [], model.predict_all
    monkeypatch.setattr(
        model, "predict_all", lambda user: rows.append(len(user)) or predict_all(user)
    )
    for mine, other in zip(compute(), whole, strict=True):
        torch.testing.assert_close(mine, other, **TIGHT)
    assert set(rows) == {1}


@pytest.mark.parametrize(("kind", "loss"), [("gru", "softmax"), ("sasrec", "softmax")])
def test_entry_gradients_have_no_term_of_the_filter_of_seen_items(
    make: Make, kind: str, loss: str
) -> None:
    """Finite differences in the weights of kept and dropped entries; the filter stays as it is."""
    model, (history, target) = make(kind, loss), _history()
    seen = torch.cat([history.item, target[:, None]], 1)
    seen[:, 5] = -1
    seen[0] = -1
    value, adjoint = loss_and_adjoint(model, _sketch(history), target, target.double(), seen)
    mine = entry_gradient(model, adjoint, history)
    every = torch.arange(model.items)
    gone = (seen[:, :, None] == every).any(1) & (every != target[:, None])

    def dense(weight: Tensor) -> Tensor:
        user = model.read(history._replace(weight=weight))
        scores = model.predict_all(user).masked_fill(gone, -torch.inf)
        return scores.logsumexp(1) - scores.gather(1, target[:, None])[:, 0]

    torch.testing.assert_close(value, dense(history.weight), **TIGHT)
    assert bool((_loss(model, history, target) > value + 1e-3)[1:].all())
    for place in range(LENGTH):
        nudge = torch.zeros_like(history.weight)
        nudge[:, place] = 1e-5
        slope = (dense(history.weight + nudge) - dense(history.weight - nudge)) / 2e-5
        torch.testing.assert_close(mine[:, place], slope, atol=1e-6, rtol=1e-5)
