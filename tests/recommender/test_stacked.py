"""Recommenders side by side, and as decisions see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dips.numerics.fixed_point import PARAMETER_BITS, STATE_BITS, quantize
from dips.recommender import signals as signals_module
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.mlp import MLP
from dips.recommender.signals import recommender_signals, rounding
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch
from dips.testing import random_candidates

Dot = Callable[..., DotProduct]


def _task(model: Recommender, item: Tensor, rating: Tensor, weight: Tensor) -> Tensor:
    user = model.read(Evidence.new(item, rating, weight, (weight > 0).sum(1)))
    return model.losses(user, item, rating)


def _inputs(runs: int, items: int = 8) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    item = torch.randint(items, (runs, 5, 3), generator=generator)
    rating = torch.randint(1, 6, (runs, 5, 3), generator=generator).float()
    return item, rating, torch.ones(runs, 5, 3)


def test_a_stack_is_each_run_alone(dot: Dot, loss: Loss) -> None:
    models = [dot(loss, seed=seed, inner_lr=rate) for seed, rate in enumerate((0.1, 0.05, 0.2))]
    inputs = _inputs(3)
    together = StackedRecommenders.of(models).call(_task, *inputs)
    for run, model in enumerate(models):
        alone = _task(model, *(field[run] for field in inputs))
        torch.testing.assert_close(together[run], alone, atol=1e-5, rtol=1e-5)
        single = StackedRecommenders.of([model]).call(
            _task, *(field[run : run + 1] for field in inputs)
        )
        torch.testing.assert_close(single[0], alone, atol=1e-5, rtol=1e-5)


def test_select_one_and_names(dot: Dot, losses: dict[str, Loss]) -> None:
    models = [dot(losses["mse"], seed=seed) for seed in range(3)]
    stack = StackedRecommenders.of(models)
    assert stack.runs == 3
    assert set(stack.trainable) == {"user_prior", "vectors", "user_bias_scale", "bias"}
    chosen = stack.select([2, 0, 2])
    assert torch.equal(chosen.state["vectors"][1], models[0].vectors)
    for run, model in enumerate(models):
        copy = stack.one(run)
        for name, value in model.state_dict().items():
            assert torch.equal(copy.state_dict()[name], value)
    with torch.no_grad():
        stack.state["bias"].add_(1)
    assert not torch.equal(stack.one(0).bias, models[0].bias)  # type: ignore[arg-type]


def test_settled_parameters_lie_on_the_grid(dot: Dot, losses: dict[str, Loss]) -> None:
    model = dot(losses["mse"], inner_lr=0.1)
    quantized = StackedRecommenders.of([model]).quantized()
    for name in quantized.trainable:
        value = quantized.state[name]
        assert value.dtype == torch.float64
        assert torch.equal(quantize(value, PARAMETER_BITS), value)
        gap = (value[0] - dict(model.named_parameters())[name].double()).abs().max()
        assert 0 < float(gap.detach()) <= 2.0 ** -(PARAMETER_BITS + 1)
    assert float(quantized.state["inner_lr"]) == float(model.inner_lr.double())
    assert model.vectors.dtype == torch.float32  # the original is as it was


def _read(model: Recommender, *fields: Tensor) -> Tensor:
    return model.read(Evidence(*fields), rounding)


@pytest.mark.parametrize("width", [2, 12], ids=["few entries", "more entries than dimensions"])
def test_settled_reading_is_the_same_in_any_batch(dot: Dot, loss: Loss, width: int) -> None:
    """To the last bit: alone, together, entries in any order, and in a stack."""
    more = (
        {"repeat_feature": True, "recency_decay": True, "tie_embeddings": False}
        if loss.listwise
        else {}
    )
    models = [dot(loss, seed=seed, **more) for seed in range(2)]
    generator = torch.Generator().manual_seed(1)
    item = torch.randint(8, (40, width), generator=generator)
    rating = torch.randint(1, 6, (40, width), generator=generator).double()
    weight = (torch.rand(40, width, generator=generator) > 0.3).double()
    age = torch.randint(50, (40, width), generator=generator).double()
    often = torch.randint(1, 9, (40, width), generator=generator).double()
    past = (item, rating, weight, (weight > 0).sum(1), age, often)
    single = StackedRecommenders.of(models[:1]).quantized()
    together = single.call(_read, *(field[None] for field in past))[0]
    assert torch.equal(quantize(together, STATE_BITS), together)
    alone = [single.call(_read, *(f[row : row + 1][None] for f in past))[0] for row in range(40)]
    assert torch.equal(torch.cat(alone), together)
    order = torch.randperm(width, generator=generator)
    shuffled = (*(field[:, order] for field in past[:3]), past[3], age[:, order], often[:, order])
    assert torch.equal(single.call(_read, *(field[None] for field in shuffled))[0], together)
    both = StackedRecommenders.of(models).quantized()
    assert torch.equal(both.call(_read, *(torch.stack([f, f]) for f in past))[0], together)


def test_unsettled_reading_is_not(dot: Dot, losses: dict[str, Loss]) -> None:
    """Or the test above could not fail."""
    stack = StackedRecommenders.of([dot(losses["softmax"], items=300, dim=32)])
    generator = torch.Generator().manual_seed(1)
    item = torch.randint(300, (40, 6), generator=generator)
    past = Evidence.new(item, item.float(), torch.ones(40, 6), torch.full((40,), 6))
    plain = lambda model, *fields: model.read(Evidence(*fields))  # noqa: E731
    together = stack.call(plain, *(field[None] for field in past))[0]
    alone = [stack.call(plain, *(f[row : row + 1][None] for f in past))[0] for row in range(40)]
    assert not torch.equal(torch.cat(alone), together)


@pytest.mark.parametrize("kind", [DotProduct, MLP])
def test_signals(monkeypatch: pytest.MonkeyPatch, loss: Loss, kind: type[DotProduct | MLP]) -> None:
    """What policies are told is what the recommender says, in pieces of any size."""
    model = kind(items=8, loss=loss, dim=5, generator=torch.Generator().manual_seed(0))
    quantized = StackedRecommenders.of([model]).quantized()
    exact = quantized.one(0)
    sketch, candidates = random_candidates(users=9, seed=2)
    signals = recommender_signals(quantized, sketch, candidates)
    present = sketch.present.double()
    user = exact.read(
        Evidence.new(sketch.item, sketch.rating.double(), present, present.sum(1).long()), rounding
    )
    rating = candidates.rating.double()
    expected = exact.losses(user, candidates.item, rating).detach()
    torch.testing.assert_close(signals.loss, expected, atol=1e-9, rtol=1e-9)
    assert not signals.loss.requires_grad
    assert torch.equal(signals.embedding, exact.embedding(candidates.item))
    weights = candidates.present.double() / 2
    past = Evidence.new(candidates.item, rating, weights, candidates.present.sum(1))
    other = exact.losses(exact.read(past, rounding), candidates.item, rating).detach()
    torch.testing.assert_close(signals.read(weights).losses(), other, atol=1e-9, rtol=1e-9)
    effect = exact.influences(
        exact.read(past, rounding), candidates.item, rating, candidates.present.double(), 0.7
    )
    told = signals.read(weights).influences(0.7)
    torch.testing.assert_close(told, effect.detach(), atol=1e-8, rtol=1e-8)
    if loss.channels == 1:
        slope = exact.loss_gradients(user, candidates.item, rating)
        assert signals.residual.shape == slope.shape[:2]
    answers = (signals.loss, told)
    monkeypatch.setitem(signals_module.CHUNK, "cpu", 64 * 2)
    pieces = recommender_signals(quantized, sketch, candidates)
    for one, two in zip(answers, (pieces.loss, pieces.read(weights).influences(0.7)), strict=True):
        assert torch.equal(quantize(one, 20), quantize(two, 20))


def test_residuals_are_minus_the_slope_in_the_score(dot: Dot, losses: dict[str, Loss]) -> None:
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


def test_among_some_items(dot: Dot, losses: dict[str, Loss]) -> None:
    """Numbered anew, they score and read as before; so they do as decisions see them."""
    stack = StackedRecommenders.of([dot(losses["mse"], seed=seed) for seed in range(2)])
    items = torch.tensor([1, 4, 6])
    place, rating, weight = _inputs(2, items=3)
    for whole, few in (
        (stack, stack.among(items)),
        (stack.quantized(), stack.among(items).quantized()),
    ):
        asked = (rating.to(whole.state["vectors"].dtype), weight)
        assert few.state["vectors"].shape[1] == 3
        assert torch.equal(few.call(_task, place, *asked), whole.call(_task, items[place], *asked))


def test_one_run_is_seen_as_often_as_asked(dot: Dot, losses: dict[str, Loss]) -> None:
    model = dot(losses["mse"], seed=3)
    twice = StackedRecommenders.of([model]).select([0, 0])
    inputs = [field.expand(2, -1, -1) for field in _inputs(1)]
    assert twice.runs == 2
    assert torch.equal(*twice.call(_task, *inputs).unbind())
