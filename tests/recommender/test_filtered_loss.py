"""Losses of predictions with sketch items filtered from the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.filtered_loss import (
    MIN_REMAINING,
    filters_in_loss,
    losses_without,
    prediction_losses,
)
from dips.recommender.gru import GRU
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import BPR, FullSoftmax, Loss, SampledSoftmax
from dips.recommender.mlp import MLP

ITEMS = 8
Dot = Callable[..., DotProduct]
Linearised = Callable[..., LinearisedDotProduct]


def _case() -> tuple[torch.Tensor, Evidence, torch.Tensor]:
    """Return users, sketches and two targets each; with an empty slot and a duplicate."""
    draw = torch.Generator().manual_seed(2)
    user = torch.randn(4, 6, generator=draw).double()
    item = torch.tensor([[0, 1, 2], [3, 3, 4], [5, 6, 7], [0, 4, 6]])
    weight = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]]).double()
    evidence = Evidence.new(item, torch.ones_like(weight), weight, torch.full((4,), 3))
    return user, evidence, torch.tensor([[5, 2], [6, 0], [6, 1], [2, 7]])


@pytest.mark.parametrize("form", ["dot", "linearised"])
def test_losses_are_those_of_the_remaining_items(form: str, request: pytest.FixtureRequest) -> None:
    """Written out with a mask: who came twice goes once, and what is predicted stays."""
    model = request.getfixturevalue(form)(FullSoftmax()).double()
    model.masks_sketch = True
    user, evidence, comes = _case()
    found = prediction_losses(model, user, evidence, comes, torch.ones(4, 2).double())
    for row, kept in enumerate([{0, 1}, {3, 4}, {5, 6, 7}, {0, 4, 6}]):
        scores = model.predict_all(user[row : row + 1])[0]
        for place, item in enumerate(comes[row].tolist()):
            left = [one for one in range(ITEMS) if one == item or one not in kept]
            wanted = scores[left].logsumexp(0) - scores[item]
            torch.testing.assert_close(found[row, place], wanted)


def test_sampled_losses_are_without_the_sketch(linearised: Linearised) -> None:
    """The sum over sampled items estimates that over all; exact terms are taken from it."""
    model = linearised(SampledSoftmax(4)).double().requires_grad_(False)
    model.masks_sketch = True
    model.log_q.copy_(torch.linspace(-2.0, -4.0, 4))
    user, evidence, comes = _case()
    found = prediction_losses(model, user, evidence, comes, torch.ones(4, 2).double())
    for row, kept in enumerate([{0, 1}, {3, 4}, {5, 6, 7}, {0, 4, 6}]):
        scores = model.predict_all(user[row : row + 1])[0]
        for place, own in enumerate(comes[row].tolist()):
            drawn = zip(model.negatives.tolist(), model.log_q, strict=True)
            left = [(scores[item] - log_q).exp() for item, log_q in drawn if item != own]
            left += [scores[own].exp(), *(-scores[item].exp() for item in kept - {own})]
            torch.testing.assert_close(found[row, place], sum(left).log() - scores[own])


def test_linearised_losses_are_filtered_with_a_softmax_only(linearised: Linearised) -> None:
    for loss, more, filtered in (
        (FullSoftmax(), {}, True),
        (SampledSoftmax(4), {}, True),
        (BPR(4), {}, False),
        (FullSoftmax(), {"repeat_feature": True}, False),
    ):
        model = linearised(loss, **more)
        assert not filters_in_loss(model)
        model.masks_sketch = True
        assert filters_in_loss(model) == filtered


@pytest.mark.parametrize(
    ("loss", "masks_sketch", "repeat_feature"),
    [("softmax", False, False), ("mse", True, False), ("softmax", True, True)],
)
def test_without_a_filter_they_are_the_losses(
    dot: Dot, losses: dict[str, Loss], loss: str, masks_sketch: bool, repeat_feature: bool
) -> None:
    """With ratings, without a filter, and with a repeat feature."""
    model = dot(losses[loss], repeat_feature=repeat_feature).double()
    model.masks_sketch = masks_sketch
    assert not filters_in_loss(model)
    user, evidence, comes = _case()
    user = torch.nn.functional.pad(user, (0, ITEMS if repeat_feature else 0))
    user = torch.nn.functional.pad(user, (0, len(model.user_prior) - 6))
    ratings = torch.ones(4, 2).double()
    plain = model.losses(user, comes, ratings)
    assert torch.equal(prediction_losses(model, user, evidence, comes, ratings), plain)


def test_losses_are_finite_if_all_other_items_are_filtered(
    dot: Dot, losses: dict[str, Loss]
) -> None:
    """A loss of about nothing, and a number."""
    model = dot(losses["softmax"]).float()
    model.masks_sketch = True
    item = torch.arange(ITEMS)[None]
    evidence = Evidence.new(item, torch.ones(1, ITEMS), torch.ones(1, ITEMS), torch.tensor([8]))
    found = prediction_losses(model, torch.zeros(1, 6), evidence, item[:, :1], torch.ones(1, 1))
    assert float(found.detach().abs()) < 1e-3
    with torch.no_grad():
        model.bias[0] = -200.0  # then in single precision nothing at all is left
    found = prediction_losses(model, torch.zeros(1, 6), evidence, item[:, :1], torch.ones(1, 1))
    plain = model.losses(torch.zeros(1, 6), item[:, :1], torch.ones(1, 1))
    torch.testing.assert_close(found, plain + math.log(MIN_REMAINING))


SEEN = torch.tensor([[0, 1, 5, -1], [3, 3, 6, 4], [-1, -1, -1, -1], [7, 0, 1, 2]])
"""Items met before: some twice, some of them targets, none in one row; -1 pads."""


def _recommender(form: str, loss: Loss, request: pytest.FixtureRequest) -> Recommender:
    """Return a recommender of 8 items in float64, with scores far from zero."""
    if form in ("dot", "linearised"):
        model: Recommender = request.getfixturevalue(form)(loss)
    else:
        model = (GRU if form == "gru" else MLP)(items=ITEMS, loss=loss, dim=6)
    model = model.double().requires_grad_(False)
    for parameter in model.parameters():
        parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 2
    model.masks_seen = True
    return model


def _dense(model: Recommender, user: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Return the oracle: scores of all items, those seen at minus infinity but for the target."""
    gone = (SEEN[:, :, None] == torch.arange(ITEMS)).any(1)
    columns = []
    for own in items.unbind(1):
        others = gone & (torch.arange(ITEMS) != own[:, None])
        scores = model.predict_all(user).masked_fill(others, -torch.inf)
        columns.append(scores.logsumexp(1) - scores.gather(1, own[:, None])[:, 0])
    return torch.stack(columns, 1)


@pytest.mark.parametrize("form", ["dot", "linearised", "mlp", "gru"])
def test_seen_items_are_filtered_and_targets_are_not(
    form: str, request: pytest.FixtureRequest
) -> None:
    """Losses, and their gradients in users and in all parameters."""
    model = _recommender(form, FullSoftmax(), request).requires_grad_()
    user, evidence, comes = _case()
    user = torch.nn.functional.pad(user, (0, len(model.user_prior) - 6)).requires_grad_()
    ones = torch.ones(4, 2).double()
    found = losses_without(model, user, comes, ones, SEEN)
    wanted = _dense(model, user, comes)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(prediction_losses(model, user, evidence, comes, ones, SEEN), found)
    plain = model.losses(user, comes, ones)
    torch.testing.assert_close(plain[2], found[2])
    assert bool((plain > found + 1e-3)[[0, 1, 3]].all())
    at = [user, *(value for _, value in model.named_parameters())]
    mass = torch.arange(1.0, 9).view(4, 2).double()
    slopes = [
        torch.autograd.grad((each * mass).sum(), at, materialize_grads=True, retain_graph=True)
        for each in (found, wanted)
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("form", ["dot", "linearised", "gru"])
def test_seen_negatives_are_filtered(form: str, request: pytest.FixtureRequest) -> None:
    """A seen item leaves the sample; one that was drawn twice leaves it twice."""
    model = _recommender(form, SampledSoftmax(6), request)
    model.negatives.copy_(torch.tensor([6, 1, 3, 1, 0, 7]))
    model.log_q.copy_(torch.linspace(-2.0, -1.0, 6))
    user, _, comes = _case()
    found = losses_without(model, user, comes, torch.ones(4, 2).double(), SEEN)
    for row in range(4):
        scores = model.predict_all(user[row : row + 1])[0]
        for place, own in enumerate(comes[row].tolist()):
            drawn = zip(model.negatives.tolist(), model.log_q, strict=True)
            left = [(scores[one] - log_q).exp() for one, log_q in drawn
                    if one != own and one not in SEEN[row]]  # fmt: skip
            wanted = (scores[own].exp() + sum(left)).log() - scores[own]
            torch.testing.assert_close(found[row, place], wanted)


def test_a_loss_without_softmax_has_nothing_to_filter_from(linearised: Linearised) -> None:
    user, _, comes = _case()
    model = linearised(BPR(4)).double()
    ones = torch.ones(4, 2).double()
    with pytest.raises(ValueError, match="BPR has no softmax"):
        losses_without(model, user, comes, ones, SEEN)
    plain = losses_without(model, user, comes, ones, SEEN[:, :0])
    assert torch.equal(plain, model.losses(user, comes, ones))


@pytest.mark.parametrize("form", ["dot", "linearised"])
def test_losses_are_finite_if_all_other_items_were_seen(
    form: str, request: pytest.FixtureRequest
) -> None:
    """Also if seen items have almost all of the probability: nothing is bounded from below."""
    model = request.getfixturevalue(form)(FullSoftmax()).float()
    with torch.no_grad():
        model.bias[3] = 300.0
    user = torch.randn(1, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    item, ones = torch.tensor([[1]]), torch.ones(1, 1)
    loss = losses_without(model, user, item, ones, torch.arange(ITEMS)[None])
    assert float(loss.detach()) == 0.0
    assert not torch.autograd.grad(loss.sum(), user)[0].any()
    few = losses_without(model, user, item, ones, torch.tensor([[3, 0]]))
    scores = model.predict_all(user)[0, [1, 2, 4, 5, 6, 7]]
    torch.testing.assert_close(few[0, 0], scores.logsumexp(0) - scores[0])
