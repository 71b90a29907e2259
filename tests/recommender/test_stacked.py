"""Stacked recommenders, and their quantized copies that decisions read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dips.numerics.fixed_point import PARAMETER_BITS, STATE_BITS, quantize
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.signals import rounding
from dips.recommender.stacked import StackedRecommenders

Dot = Callable[..., DotProduct]


def _task(model: Recommender, item: Tensor, rating: Tensor, weight: Tensor) -> Tensor:
    user = model.read(Evidence.new(item, rating, weight, (weight > 0).sum(1)))
    return model.losses(user, item, rating)


def _inputs(runs: int, items: int = 8) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    item = torch.randint(items, (runs, 5, 3), generator=generator)
    rating = torch.randint(1, 6, (runs, 5, 3), generator=generator).float()
    return item, rating, torch.ones(runs, 5, 3)


def test_stacked_runs_equal_single_runs(dot: Dot, loss: Loss) -> None:
    models = [dot(loss, seed=seed, inner_lr=rate) for seed, rate in enumerate((0.1, 0.05, 0.2))]
    inputs = _inputs(3)
    together = StackedRecommenders.of(models).call(_task, *inputs)
    for run, model in enumerate(models):
        expected = _task(model, *(field[run] for field in inputs))
        torch.testing.assert_close(together[run], expected, atol=1e-5, rtol=1e-5)
        single = StackedRecommenders.of([model]).call(
            _task, *(field[run : run + 1] for field in inputs)
        )
        torch.testing.assert_close(single[0], expected, atol=1e-5, rtol=1e-5)


def test_selecting_runs_and_parameter_names(dot: Dot, losses: dict[str, Loss]) -> None:
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


def test_quantized_parameters_are_on_the_grid(dot: Dot, losses: dict[str, Loss]) -> None:
    model = dot(losses["mse"], inner_lr=0.1)
    quantized = StackedRecommenders.of([model]).quantized()
    for name in quantized.trainable:
        value = quantized.state[name]
        assert value.dtype == torch.float64
        assert torch.equal(quantize(value, PARAMETER_BITS), value)
        gap = (value[0] - dict(model.named_parameters())[name].double()).abs().max()
        assert 0 < float(gap.detach()) <= 2.0 ** -(PARAMETER_BITS + 1)
    assert float(quantized.state["inner_lr"]) == float(model.inner_lr.double())
    assert model.vectors.dtype == torch.float32  # the original is unchanged


def _read(model: Recommender, *fields: Tensor) -> Tensor:
    return model.read(Evidence(*fields), rounding)


@pytest.mark.parametrize("width", [2, 12], ids=["few entries", "more entries than dimensions"])
def test_quantized_reading_is_the_same_in_any_batch(dot: Dot, loss: Loss, width: int) -> None:
    """Exactly: one row or many, entries in any order, and in a stack."""
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
    row_by_row = [
        single.call(_read, *(f[row : row + 1][None] for f in past))[0] for row in range(40)
    ]
    assert torch.equal(torch.cat(row_by_row), together)
    order = torch.randperm(width, generator=generator)
    shuffled = (*(field[:, order] for field in past[:3]), past[3], age[:, order], often[:, order])
    assert torch.equal(single.call(_read, *(field[None] for field in shuffled))[0], together)
    both = StackedRecommenders.of(models).quantized()
    assert torch.equal(both.call(_read, *(torch.stack([f, f]) for f in past))[0], together)


def test_reading_without_quantization_depends_on_the_batch(
    dot: Dot, losses: dict[str, Loss]
) -> None:
    """Otherwise the test above could not fail."""
    stack = StackedRecommenders.of([dot(losses["softmax"], items=300, dim=32)])
    generator = torch.Generator().manual_seed(1)
    item = torch.randint(300, (40, 6), generator=generator)
    past = Evidence.new(item, item.float(), torch.ones(40, 6), torch.full((40,), 6))
    plain = lambda model, *fields: model.read(Evidence(*fields))  # noqa: E731
    together = stack.call(plain, *(field[None] for field in past))[0]
    row_by_row = [
        stack.call(plain, *(f[row : row + 1][None] for f in past))[0] for row in range(40)
    ]
    assert not torch.equal(torch.cat(row_by_row), together)


def test_a_model_of_some_items_scores_them_as_before(dot: Dot, losses: dict[str, Loss]) -> None:
    """Renumbered items score and read as before, also in the quantized model."""
    stack = StackedRecommenders.of([dot(losses["mse"], seed=seed) for seed in range(2)])
    items = torch.tensor([1, 4, 6])
    place, rating, weight = _inputs(2, items=3)
    for whole, few in (
        (stack, stack.among(items)),
        (stack.quantized(), stack.among(items).quantized()),
    ):
        given = (rating.to(whole.state["vectors"].dtype), weight)
        assert few.state["vectors"].shape[1] == 3
        assert torch.equal(few.call(_task, place, *given), whole.call(_task, items[place], *given))


def test_a_single_run_can_be_selected_repeatedly(dot: Dot, losses: dict[str, Loss]) -> None:
    model = dot(losses["mse"], seed=3)
    twice = StackedRecommenders.of([model]).select([0, 0])
    inputs = [field.expand(2, -1, -1) for field in _inputs(1)]
    assert twice.runs == 2
    assert torch.equal(*twice.call(_task, *inputs).unbind())
