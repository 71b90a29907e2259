"""Repeat feature, recency decay and input embedding of the dot product: closed forms, gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import FullSoftmax

Dot = Callable[..., DotProduct]
NAMES = ("repeat_feature", "recency_decay", "tie_embeddings")
KINDS = [dict(zip(NAMES, flags, strict=True)) for flags in product([0, 1], repeat=3)]


def _case() -> tuple[Evidence, Tensor]:
    item = torch.tensor([[1, 4, 4], [2, 0, 7], [3, 3, 3], [5, 6, 1]])
    weight = torch.tensor([[1.0, 0.5, 1], [1, 0, 0], [1, 1, 1], [0.3, 1, 0]]).double()
    age = torch.tensor([[0, 3, 50], [1, 0, 0], [2, 9, 200], [0, 1, 2]]).double()
    often = torch.tensor([[1, 4, 2], [3, 1, 1], [1, 2, 3], [9, 1, 1]]).double()
    past = Evidence(item, torch.ones_like(weight), weight, (weight > 0).sum(1), age, often)
    return past, torch.tensor([[4], [2], [0], [5]])


@pytest.mark.parametrize("penalty", [0.0, 0.4])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_closed_forms_are_the_generic_ones(dot: Dot, kind: dict[str, int], penalty: float) -> None:
    model = dot(FullSoftmax(), prior_penalty=penalty, **kind).double()
    past, _ = _case()
    user = model.read(past)
    assert user.shape[1] == 6 + 8 * kind["repeat_feature"]
    base, tight = Recommender, {"atol": 1e-11, "rtol": 1e-11}
    torch.testing.assert_close(user, base.read(model, past), **tight)
    torch.testing.assert_close(model.predict_all(user), base.predict_all(model, user), **tight)
    some = torch.tensor([6, 0, 4])
    torch.testing.assert_close(model.predict_some(user, some), model.predict_all(user)[:, some])
    torch.testing.assert_close(
        model.inner_gradient(user, past), base.inner_gradient(model, user, past), **tight
    )
    fields = (user, past.item, past.rating)
    torch.testing.assert_close(
        model.loss_gradients(*fields), base.loss_gradients(model, *fields), **tight
    )
    effect = model.influences(*fields, past.weight, 0.5)
    other = base.influences(model, *fields, past.weight, 0.5)
    torch.testing.assert_close(effect, other, atol=1e-8, rtol=1e-8)


def test_meta_gradients_against_finite_differences(dot: Dot) -> None:
    """In the scale of the item-id feature, the recency decay and a separate input embedding."""
    model = dot(
        FullSoftmax(), repeat_feature=True, recency_decay=True, tie_embeddings=False
    ).double()
    past, target = _case()

    def loss() -> Tensor:
        return model.losses(model.read(past), target, torch.ones_like(target)).sum()

    loss().backward()
    second = range(6, 12)
    for parameter, places in (
        (model.repeat_scale, [0]),
        (model.recency_decay, [0, 1]),
        (model.input_offset, second),
    ):
        flat = parameter.data.view(-1)
        for place in places:
            ends = []
            for step in (1e-5, -2e-5):
                flat[place] += step
                ends.append(float(loss().detach()))
            flat[place] += 1e-5
            slope = parameter.grad.view(-1)[place]
            assert float(slope.abs()) > 1e-4
            torch.testing.assert_close(slope, torch.tensor((ends[0] - ends[1]) / 2e-5).double())


def test_the_repeat_feature_raises_the_score_of_a_kept_item(dot: Dot) -> None:
    """More than the score of another item with the same vector and bias."""
    model = dot(FullSoftmax(), repeat_feature=True)
    with torch.no_grad():
        model.vectors[5], model.bias[5] = model.vectors[4], model.bias[4]
    past = Evidence.new(torch.tensor([[4]]), *torch.ones(2, 1, 1), torch.tensor([1]))
    scores = model.predict_all(model.read(past))[0]
    assert float(scores[4].detach() - scores[5].detach()) > 0.5
    nothing = model.predict_all(model.initial_user(1))[0]
    assert float(nothing[4].detach()) == float(nothing[5].detach())


def test_recency_decay_lowers_the_weights_of_old_entries(dot: Dot) -> None:
    model = dot(FullSoftmax(), recency_decay=True).double()
    past, _ = _case()
    left = model.weight_factor(past.age, past.repeats).detach()
    assert torch.equal(left[past.age == 0], torch.ones_like(left[past.age == 0]))
    older = past.age.flatten().argsort()
    assert bool((left.flatten()[older].diff() <= 0).all())
    assert 0 < float(left.min()) < 0.5
    plain = dot(FullSoftmax()).double()
    torch.testing.assert_close(
        model.read(past), plain.read(past._replace(weight=left * past.weight))
    )
    assert torch.equal(plain.read(past), plain.read(past._replace(age=past.age + 1)))


def test_weights_grow_with_the_repeat_count_if_items_repeat(dot: Dot) -> None:
    model = dot(FullSoftmax(), repeat_feature=True).double()
    past, _ = _case()
    factor = model.weight_factor(past.age, past.repeats).detach()
    torch.testing.assert_close(factor, past.repeats.sqrt())  # initially
    weighted = past._replace(weight=factor * past.weight, repeats=torch.ones_like(factor))
    torch.testing.assert_close(model.read(past), model.read(weighted))
    exponent = model.repeat_exponent.detach()
    slope = torch.func.grad(lambda power: _sum_of_users(model, past, power))(exponent)
    assert float(slope.detach().abs()) > 1e-3  # the exponent is learned
    plain = dot(FullSoftmax()).double()
    assert torch.equal(plain.read(past), plain.read(weighted._replace(weight=past.weight)))


def test_a_separate_input_embedding_can_point_to_another_item(dot: Dot) -> None:
    """A kept item then raises a score that its own vector lowers."""
    model = dot(FullSoftmax(), tie_embeddings=False).double().requires_grad_(False)
    model.input_offset.zero_()
    kept, ahead = torch.tensor([[2]]), 5
    one = torch.ones(1, 1).double()
    past = Evidence.new(kept, one, one, torch.tensor([1]))
    before = model.predict_all(model.read(past))[0, ahead]
    torch.testing.assert_close(model.read(past), dot(FullSoftmax()).double().read(past))  # at first
    model.input_offset[2] = model.vectors[ahead] - model.vectors[2]
    after = model.predict_all(model.read(past))[0, ahead]
    assert float(after) > float(before)
    torch.testing.assert_close(model.input_vectors(kept)[0, 0], model.vectors[ahead])
    assert float(model.inner_loss(model.read(past), kept, one)) < float(
        model.inner_loss(model.initial_user(1), kept, one)
    )


def test_influences_are_those_of_the_inner_loss(dot: Dot) -> None:
    """Finite differences at the optimum of the inner loss: only that depends on the weights."""
    model = dot(FullSoftmax(), tie_embeddings=False).double().requires_grad_(False)
    item = torch.tensor([[1, 4, 6, 2]])
    weight = torch.tensor([[1.0, 0.5, 1.5, 1.0]]).double()
    rating, damping = torch.ones_like(weight), 1.0

    def optimum(weight: Tensor) -> Tensor:
        user = model.initial_user(1).clone()
        for _ in range(400):
            past = Evidence.new(item, rating, weight, torch.tensor([4]))
            user = user - 0.1 * (
                model.inner_gradient(user, past) + damping * (user - model.initial_user(1))
            )
        return user

    def total(user: Tensor) -> float:
        return float((model.losses(user, item, rating) * weight).sum())

    found = model.influences(optimum(weight), item, rating, weight, damping)
    for place, step in enumerate(torch.eye(4).double()[:, None] * 1e-5):
        moved = (total(optimum(weight + step)) - total(optimum(weight - step))) / 2e-5
        assert moved == pytest.approx(float(found[0, place]), rel=1e-3)


def _sum_of_users(model: DotProduct, past: Evidence, power: Tensor) -> Tensor:
    changed = {"repeat_exponent": power}
    read = torch.func.functional_call(model, changed, (lambda model: model.read(past),))
    return read.sum()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_step_size_is_constant_with_recency_decay_or_repeat_feature(
    dot: Dot, kind: dict[str, int]
) -> None:
    model = dot(FullSoftmax(), inner_lr=0.2, **kind)
    item = torch.ones(1, 16)
    many = Evidence.new(item.long(), item, item, torch.tensor([16]))
    expected = 0.2 if kind["repeat_feature"] or kind["recency_decay"] else 0.05
    assert float(model.step_size(many)) == pytest.approx(expected)


def test_initial_recency_decay_is_slower_if_items_repeat(dot: Dot) -> None:
    age, once = torch.tensor([[15.0]]), torch.ones(1, 1)
    left = [
        float(
            dot(FullSoftmax(), recency_decay=True, repeat_feature=back)
            .weight_factor(age, once)
            .detach()
        )
        for back in (True, False)
    ]
    assert left[0] > 0.5
    assert left[1] < 0.01
