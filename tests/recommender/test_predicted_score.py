"""What the recommender expects, against reading as it is: the same close to the start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dips.data.side_information import ColumnEncoding, SideInformation
from dips.kernels.dispatch import computed_signals
from dips.numerics.descent import identity
from dips.recommender import predicted_score as predicted_scores
from dips.recommender.base import Evidence
from dips.recommender.dot import DotProduct
from dips.recommender.kernel_inputs import model_spec
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, Loss, SampledSoftmax
from dips.recommender.mlp import MLP
from dips.recommender.predicted_score import is_linearisable, linearise, predicted_score
from dips.recommender.signals import as_evidence, recommender_signals, rounding
from dips.recommender.stacked import StackedRecommenders
from dips.testing import random_candidates

ITEMS, DIM = 8, 3
Dot = Callable[..., DotProduct]
Linearised = Callable[..., LinearisedDotProduct]


def _evidence(size: int) -> Evidence:
    """Sketches with empty slots, and ages."""
    sketch, candidates = random_candidates(users=30, size=size, period=2, items=ITEMS, seed=size)
    return as_evidence(sketch, sketch.present.double(), candidates.seen)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize(
    "more", [{}, {"recency_decay": True}, {"recency_decay": True, "tie_embeddings": False}], ids=str
)
def test_close_to_the_prior_it_equals_the_inner_loop(
    dot: Dot, losses: dict[str, Loss], more: dict[str, bool], size: int
) -> None:
    """What is left is of second order: with a tenth of the way it is about a hundredth."""
    evidence, items = _evidence(size), torch.arange(ITEMS).expand(30, -1)
    left, moved = [], []
    for rate in (0.2, 0.02):
        rest = {"items": ITEMS, "dim": DIM, "seed": 4, "inner_lr": rate, **more}
        model = dot(losses["softmax"], inner_steps=6, **rest).double()
        with torch.no_grad():
            read = model.predict(model.read(evidence), items)
            left.append(
                float(
                    (predicted_score(model, linearise(model), evidence, items, identity) - read)
                    .abs()
                    .max()
                )
            )
            at_first = model.predict(model.initial_user(30), items)
            moved.append(float((read - at_first).abs().max()))
    assert left[0] < 0.25 * moved[0]
    assert left[1] < left[0] / 30
    assert moved[1] > moved[0] / 20


@pytest.mark.parametrize("loss", [FullSoftmax(), SampledSoftmax(3)], ids=["full", "sampled"])
@pytest.mark.parametrize("rate", [0.2, 50.0])
@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize(
    "more", [{}, {"recency_decay": True}, {"recency_decay": True, "tie_embeddings": False}], ids=str
)
def test_a_linearised_inner_loop_is_the_prediction_itself(
    linearised: Linearised, more: dict[str, bool], size: int, rate: float, loss: Loss
) -> None:
    """Up to the rounding to the fixed-point grid; also where the step size is reduced."""
    rest = {"items": ITEMS, "dim": DIM, "seed": 4, "inner_lr": rate, **more}
    quantized = StackedRecommenders.of([linearised(loss, **rest)]).quantized()
    model, evidence = quantized.one(0), _evidence(size)
    items = torch.arange(ITEMS).expand(30, -1)
    with torch.no_grad():
        found = predicted_score(model, linearise(model), evidence, items, rounding)
        read = model.predict(model.read(evidence, rounding), items)
        exact = model.predict(model.read(evidence), items)
        moved = float((exact - model.predict(model.initial_user(30), items)).abs().max())
    assert moved > 0.1
    torch.testing.assert_close(found, read, atol=2e-4 * (1 + moved), rtol=0)
    torch.testing.assert_close(found, exact, atol=2e-3 * (1 + moved), rtol=0)


def test_signals_of_a_linearised_inner_loop_are_predictions(linearised: Linearised) -> None:
    """Whether they come from the linearisation, or from `read` because items repeat."""
    sketch, candidates = random_candidates(users=20, size=3, period=2, items=ITEMS, seed=1)
    evidence = as_evidence(sketch, sketch.present.double(), candidates.seen)
    for repeat_feature in (False, True):
        model = linearised(items=ITEMS, dim=DIM, repeat_feature=repeat_feature)
        quantized = StackedRecommenders.of([model]).quantized()
        exact = quantized.one(0).requires_grad_(False)
        found = recommender_signals(quantized, sketch, candidates).predicted_score
        wanted = exact.predict(exact.read(evidence, rounding), candidates.item)
        torch.testing.assert_close(found, wanted, atol=2e-4, rtol=0)
        assert torch.equal(found, wanted) == repeat_feature


def test_the_bound_is_at_least_the_largest_eigenvalue() -> None:
    """Vectors that all lie along one line which is no axis: entries are small, their sum is not."""
    model = DotProduct(loss=FullSoftmax(), items=ITEMS, dim=6).double()
    with torch.no_grad():
        model.vectors.copy_(torch.linspace(-1, 1, ITEMS)[:, None].expand(-1, 6))
        linear = linearise(model)
    largest = torch.linalg.eigvalsh(linear.covariance)[-1]
    assert largest <= linear.bound <= 1.01 * largest


def test_the_step_size_is_bounded_by_the_curvature(dot: Dot, losses: dict[str, Loss]) -> None:
    """Otherwise the iterate would grow with every step."""
    model = dot(losses["softmax"], items=ITEMS, dim=DIM, inner_lr=50.0, inner_steps=40).double()
    evidence, items = _evidence(7), torch.arange(ITEMS).expand(30, -1)
    with torch.no_grad():
        found = predicted_score(model, linearise(model), evidence, items, rounding)
    assert 1 < float(found.abs().max()) < 200


def test_ages_are_capped(
    dot: Dot, losses: dict[str, Loss], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dot(losses["softmax"], items=ITEMS, dim=DIM, recency_decay=True).double()
    evidence, items = _evidence(5), torch.arange(ITEMS).expand(30, -1)
    assert float(evidence.age.max()) > 4
    monkeypatch.setattr(predicted_scores, "MAX_AGE", 4)
    cut = evidence._replace(age=evidence.age.clamp_max(4))
    found = predicted_score(model, linearise(model), evidence, items, rounding)
    monkeypatch.setattr(predicted_scores, "MAX_AGE", 1000)
    assert torch.equal(found, predicted_score(model, linearise(model), cut, items, rounding))
    assert not torch.equal(
        found, predicted_score(model, linearise(model), evidence, items, rounding)
    )


@pytest.mark.parametrize("loss", ["mse", "bce", "cce"])
def test_for_ratings_it_is_the_prediction(dot: Dot, losses: dict[str, Loss], loss: str) -> None:
    """By reading as it is: [users, candidates] of any loss."""
    model = dot(losses[loss], items=ITEMS, dim=DIM)
    quantized = StackedRecommenders.of([model]).quantized()
    sketch, candidates = random_candidates(users=20, size=3, period=2, items=ITEMS, seed=1)
    found = recommender_signals(quantized, sketch, candidates).predicted_score
    evidence = as_evidence(sketch, sketch.present.double(), candidates.seen)
    exact = quantized.call(
        lambda model, items, *fields: model.loss.estimate(
            model.predict(model.read(Evidence(*fields), rounding), items)
        ),
        candidates.item[None],
        *(field[None] for field in evidence),
    )
    assert torch.equal(found, exact[0])
    assert found.shape == candidates.item.shape


def test_dot_products_of_clicks_without_repeats_are_linearisable(losses: dict[str, Loss]) -> None:
    """With a softmax over all items, or with a linearised inner loop and any loss."""
    rest = {"items": ITEMS, "dim": DIM}
    softmax = losses["softmax"]
    for supported in (
        DotProduct(loss=softmax, **rest),
        LinearisedDotProduct(loss=softmax, **rest),
        LinearisedDotProduct(loss=SampledSoftmax(3), **rest),
    ):
        assert is_linearisable(supported)
        assert computed_signals(model_spec(supported)) == {"predicted_score", "embedding"}
    for other in (
        LinearisedDotProduct(loss=softmax, repeat_feature=True, **rest),
        LinearisedDotProduct(loss=softmax, prior_penalty=0.1, **rest),
        DotProduct(loss=SampledSoftmax(3), **rest),
        DotProduct(loss=softmax, repeat_feature=True, **rest),
        DotProduct(loss=softmax, prior_penalty=0.1, **rest),
        DotProduct(loss=losses["mse"], **rest),
        MLP(loss=softmax, **rest),
    ):
        assert not is_linearisable(other)
        assert "predicted_score" not in computed_signals(model_spec(other))
    timed = DotProduct(loss=softmax, side=SideInformation(clock=ColumnEncoding("time", 0)), **rest)
    assert not computed_signals(model_spec(timed))
