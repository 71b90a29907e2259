"""Items that come back, and interactions that fade: closed forms, gradients, and what they mean."""

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
NAMES = ("repeat_feature", "recency_decay", "separate_input")
KINDS = [dict(zip(NAMES, flags, strict=True)) for flags in product([0, 1], repeat=3)]


def _case() -> tuple[Evidence, Tensor]:
    item = torch.tensor([[1, 4, 4], [2, 0, 7], [3, 3, 3], [5, 6, 1]])
    weight = torch.tensor([[1.0, 0.5, 1], [1, 0, 0], [1, 1, 1], [0.3, 1, 0]]).double()
    age = torch.tensor([[0, 3, 50], [1, 0, 0], [2, 9, 200], [0, 1, 2]]).double()
    often = torch.tensor([[1, 4, 2], [3, 1, 1], [1, 2, 3], [9, 1, 1]]).double()
    past = Evidence(item, torch.ones_like(weight), weight, (weight > 0).sum(1), age, often)
    return past, torch.tensor([[4], [2], [0], [5]])


@pytest.mark.parametrize("pull", [0.0, 0.4])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_closed_forms_are_the_generic_ones(dot: Dot, kind: dict[str, int], pull: float) -> None:
    model = dot(FullSoftmax(), prior_penalty=pull, **kind).double()
    past, _ = _case()
    user = model.read(past)
    assert user.shape[1] == 6 + 8 * kind["repeat_feature"]
    base, tight = Recommender, {"atol": 1e-11, "rtol": 1e-11}
    torch.testing.assert_close(user, base.read(model, past), **tight)
    torch.testing.assert_close(model.predict_all(user), base.predict_all(model, user), **tight)
    some = torch.tensor([6, 0, 4])
    torch.testing.assert_close(model.predict_some(user, some), model.predict_all(user)[:, some])
    torch.testing.assert_close(model.slope(user, past), base.slope(model, user, past), **tight)
    fields = (user, past.item, past.rating)
    torch.testing.assert_close(model.gradients(*fields), base.gradients(model, *fields), **tight)
    effect = model.influences(*fields, past.weight, 0.5)
    other = base.influences(model, *fields, past.weight, 0.5)
    torch.testing.assert_close(effect, other, atol=1e-8, rtol=1e-8)


def test_meta_gradients_against_finite_differences(dot: Dot) -> None:
    """In how strongly items speak for themselves, how they fade, and what one of them tells."""
    model = dot(
        FullSoftmax(), repeat_feature=True, recency_decay=True, separate_input=True
    ).double()
    past, target = _case()

    def loss() -> Tensor:
        return model.losses(model.read(past), target, torch.ones_like(target)).sum()

    loss().backward()
    second = range(6, 12)
    for parameter, places in (
        (model.own, [0]),
        (model.recency_decay, [0, 1]),
        (model.separate_input, second),
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


def test_what_is_kept_speaks_for_itself(dot: Dot) -> None:
    """More so than for a twin with the same vector and bias."""
    model = dot(FullSoftmax(), repeat_feature=True)
    with torch.no_grad():
        model.vectors[5], model.bias[5] = model.vectors[4], model.bias[4]
    past = Evidence.new(torch.tensor([[4]]), *torch.ones(2, 1, 1), torch.tensor([1]))
    scores = model.predict_all(model.read(past))[0]
    assert float(scores[4].detach() - scores[5].detach()) > 0.5
    nothing = model.predict_all(model.start(1))[0]
    assert float(nothing[4].detach()) == float(nothing[5].detach())


def test_fading_is_less_weight(dot: Dot) -> None:
    model = dot(FullSoftmax(), recency_decay=True).double()
    past, _ = _case()
    left = model.strength(past.age, past.repeats).detach()
    assert torch.equal(left[past.age == 0], torch.ones_like(left[past.age == 0]))
    older = past.age.flatten().argsort()
    assert bool((left.flatten()[older].diff() <= 0).all())
    assert 0 < float(left.min()) < 0.5
    plain = dot(FullSoftmax()).double()
    torch.testing.assert_close(
        model.read(past), plain.read(past._replace(weight=left * past.weight))
    )
    assert torch.equal(plain.read(past), plain.read(past._replace(age=past.age + 1)))


def test_what_was_met_often_counts_more_where_items_come_back(dot: Dot) -> None:
    model = dot(FullSoftmax(), repeat_feature=True).double()
    past, _ = _case()
    told = model.strength(past.age, past.repeats).detach()
    torch.testing.assert_close(told, past.repeats.sqrt())  # at first
    counted = past._replace(weight=told * past.weight, repeats=torch.ones_like(told))
    torch.testing.assert_close(model.read(past), model.read(counted))
    slope = torch.func.grad(lambda power: _first_score(model, past, power))(model.tally.detach())
    assert float(slope.detach().abs()) > 1e-3  # how much more is learned
    plain = dot(FullSoftmax()).double()
    assert torch.equal(plain.read(past), plain.read(counted._replace(weight=past.weight)))


def test_what_follows_an_item_need_not_be_like_it(dot: Dot) -> None:
    """Towards what it tells, a kept item raises scores that its own vector lowers."""
    model = dot(FullSoftmax(), separate_input=True).double().requires_grad_(False)
    model.separate_input.zero_()
    kept, ahead = torch.tensor([[2]]), 5
    one = torch.ones(1, 1).double()
    past = Evidence.new(kept, one, one, torch.tensor([1]))
    before = model.predict_all(model.read(past))[0, ahead]
    torch.testing.assert_close(model.read(past), dot(FullSoftmax()).double().read(past))  # at first
    model.separate_input[2] = model.vectors[ahead] - model.vectors[2]
    after = model.predict_all(model.read(past))[0, ahead]
    assert float(after) > float(before)
    torch.testing.assert_close(model.told(kept)[0, 0], model.vectors[ahead])
    assert float(model.heard(model.read(past), kept, one)) < float(
        model.heard(model.start(1), kept, one)
    )


def test_influence_is_that_of_an_entry_as_it_is_read(dot: Dot) -> None:
    """Finite differences at the optimum of what is heard: weights act on that alone."""
    model = dot(FullSoftmax(), separate_input=True).double().requires_grad_(False)
    item = torch.tensor([[1, 4, 6, 2]])
    weight = torch.tensor([[1.0, 0.5, 1.5, 1.0]]).double()
    rating, damping = torch.ones_like(weight), 1.0

    def optimum(weight: Tensor) -> Tensor:
        user = model.start(1).clone()
        for _ in range(400):
            past = Evidence.new(item, rating, weight, torch.tensor([4]))
            user = user - 0.1 * (model.slope(user, past) + damping * (user - model.start(1)))
        return user

    def total(user: Tensor) -> float:
        return float((model.losses(user, item, rating) * weight).sum())

    found = model.influences(optimum(weight), item, rating, weight, damping)
    for place, step in enumerate(torch.eye(4).double()[:, None] * 1e-5):
        moved = (total(optimum(weight + step)) - total(optimum(weight - step))) / 2e-5
        assert moved == pytest.approx(float(found[0, place]), rel=1e-3)


def _first_score(model: DotProduct, past: Evidence, power: Tensor) -> Tensor:
    changed = {"tally": power}
    read = torch.func.functional_call(model, changed, (lambda model: model.read(past),))
    return read.sum()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_larger_sketches_take_the_same_steps_where_weights_fade_or_items_return(
    dot: Dot, kind: dict[str, int]
) -> None:
    model = dot(FullSoftmax(), inner_lr=0.2, **kind)
    item = torch.ones(1, 16)
    many = Evidence.new(item.long(), item, item, torch.tensor([16]))
    expected = 0.2 if kind["repeat_feature"] or kind["recency_decay"] else 0.05
    assert float(model.rate(many)) == pytest.approx(expected)


def test_the_past_counts_longer_where_items_come_back(dot: Dot) -> None:
    age, once = torch.tensor([[15.0]]), torch.ones(1, 1)
    left = [
        float(
            dot(FullSoftmax(), recency_decay=True, repeat_feature=back).strength(age, once).detach()
        )
        for back in (True, False)
    ]
    assert left[0] > 0.5
    assert left[1] < 0.01
