"""Signals of stacked recommenders equal what each recommender computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dips.numerics.fixed_point import quantize
from dips.recommender import signals as signals_module
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, Loss, SampledSoftmax
from dips.recommender.mlp import MLP
from dips.recommender.signals import as_evidence, recommender_signals, rounding
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch
from dips.testing import random_candidates

Dot = Callable[..., DotProduct]
Linearised = Callable[..., LinearisedDotProduct]


@pytest.mark.parametrize("kind", [DotProduct, MLP])
def test_signals(monkeypatch: pytest.MonkeyPatch, loss: Loss, kind: type[DotProduct | MLP]) -> None:
    """Signals equal what the recommender computes, in chunks of any size."""
    model = kind(items=8, loss=loss, dim=5, generator=torch.Generator().manual_seed(0))
    _compare(monkeypatch, model)


@pytest.mark.parametrize("more", [{}, {"repeat_feature": True}], ids=str)
@pytest.mark.parametrize("loss", [FullSoftmax(), SampledSoftmax(5)], ids=str)
def test_signals_of_a_linearised_inner_loop(
    monkeypatch: pytest.MonkeyPatch, linearised: Linearised, loss: Loss, more: dict[str, bool]
) -> None:
    _compare(monkeypatch, linearised(loss, **more))


def _compare(monkeypatch: pytest.MonkeyPatch, model: Recommender) -> None:
    """Compare all signals with those of the recommender, in chunks of any size."""
    loss = model.loss
    quantized = StackedRecommenders.of([model]).quantized()
    exact = quantized.one(0)
    sketch, candidates = random_candidates(users=9, seed=2)
    signals = recommender_signals(quantized, sketch, candidates)
    present = sketch.present.double()
    user = exact.read(as_evidence(sketch, present, candidates.seen), rounding)
    rating = candidates.rating.double()
    expected = exact.losses(user, candidates.item, rating).detach()
    torch.testing.assert_close(signals.loss, expected, atol=1e-9, rtol=1e-9)
    assert not signals.loss.requires_grad
    assert torch.equal(signals.embedding, exact.embedding(candidates.item))
    weights = candidates.present.double() / 2
    past = as_evidence(candidates.entries, weights, candidates.seen)
    other = exact.losses(exact.read(past, rounding), candidates.item, rating).detach()
    torch.testing.assert_close(signals.read(weights).losses(), other, atol=1e-9, rtol=1e-9)
    factor = rounding(exact.weight_factor(past.age, past.repeats))
    weight = factor * candidates.present
    effect = factor * exact.influences(
        exact.read(past, rounding), candidates.item, rating, weight, 0.7
    )
    influences = signals.read(weights).influences(0.7)
    torch.testing.assert_close(influences, effect.detach(), atol=1e-8, rtol=1e-8)
    if loss.channels == 1:
        slope = exact.loss_gradients(user, candidates.item, rating)
        assert signals.residual.shape == slope.shape[:2]
    answers = (signals.loss, influences)
    monkeypatch.setitem(signals_module.CHUNK, "cpu", 64 * 2)
    pieces = recommender_signals(quantized, sketch, candidates)
    for one, two in zip(answers, (pieces.loss, pieces.read(weights).influences(0.7)), strict=True):
        assert torch.equal(quantize(one, 20), quantize(two, 20))


def test_residuals_are_minus_the_derivative_in_the_output(
    dot: Dot, losses: dict[str, Loss]
) -> None:
    sketch, candidates = random_candidates(users=5, seed=4)
    for name in ("mse", "bce", "softmax"):
        quantized = StackedRecommenders.of([dot(losses[name])]).quantized()
        exact = quantized.one(0)
        present = sketch.present.double()
        evidence = Evidence.new(sketch.item, sketch.rating.double(), present, present.sum(1).long())
        user = exact.read(evidence, rounding)
        rating = candidates.rating.double()
        scores = exact.predict_all(user).detach() if name == "softmax" else exact.predict(
            user, candidates.item
        ).detach()  # fmt: skip
        residual = recommender_signals(quantized, sketch, candidates).residual
        for slot in range(candidates.item.shape[1]):
            leaf = scores.clone().requires_grad_()
            target = candidates.item if name == "softmax" else rating
            value = exact.loss.value(leaf, target)[:, slot].sum()
            (slope,) = torch.autograd.grad(value, leaf)
            own = slope.gather(1, candidates.item[:, slot : slot + 1])[:, 0] if (
                name == "softmax"
            ) else slope[:, slot]  # fmt: skip
            torch.testing.assert_close(residual[:, slot], -own)


def test_few_logits_of_all_items_are_stored_at_once(
    linearised: Linearised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Residuals need the logits of all items; a row of the inner loop is much narrower."""
    model = linearised(items=2000, inner_steps=2)
    quantized = StackedRecommenders.of([model]).quantized()
    rows, predict_all = [], LinearisedDotProduct.predict_all

    def watched(self: LinearisedDotProduct, user: torch.Tensor) -> torch.Tensor:
        rows.append(len(user))
        return predict_all(self, user)

    monkeypatch.setattr(LinearisedDotProduct, "predict_all", watched)
    monkeypatch.setitem(signals_module.CHUNK, "cpu", 3 * 2000)
    sketch, candidates = random_candidates(users=8, seed=1)
    recommender_signals(quantized, sketch, candidates).residual  # noqa: B018
    assert rows == [3, 3, 2]


def test_rows_belong_to_runs_in_order(dot: Dot, losses: dict[str, Loss]) -> None:
    models = [dot(losses["mse"], seed=seed) for seed in range(2)]
    sketch, candidates = random_candidates(users=6, seed=1)
    together = recommender_signals(
        StackedRecommenders.of(models).quantized(), sketch, candidates
    ).loss
    for run, model in enumerate(models):
        half = slice(3 * run, 3 * run + 3)
        one_sketch = Sketch(*(field[half] for field in sketch))
        one = Candidates(*(field[half] for field in candidates))
        alone = recommender_signals(
            StackedRecommenders.of([model]).quantized(), one_sketch, one
        ).loss
        assert torch.equal(quantize(alone, 20), quantize(together[half], 20))
