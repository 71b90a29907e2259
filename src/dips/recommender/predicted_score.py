"""Predicted scores from a linearised inner loop: cheap enough for every decision of a policy.

For dot products of clicks without a repeat feature; other recommenders adapt to the sketch exactly.
With `inner_loss` linearised this is the inner loop itself. With the full softmax it is an
approximation: near the prior, the mean of all item vectors by predicted probability changes with
the user vector by their covariance.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from dips.kernels.layout import LinearisedSoftmaxModel
from dips.numerics.descent import Rounding
from dips.numerics.fixed_point import STATE_BITS, quantize
from dips.numerics.linearised_descent import curvature_bound, quantized_moments, stable_rate
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax
from dips.recommender.stacked import StackedRecommenders
from dips.recommender.weighted_entries import WeightedEntries

MAX_AGE = (1 << 12) - 1
"""Ages above this count as this age."""


LinearisableModel = DotProduct | LinearisedDotProduct


def is_linearisable(model: Recommender) -> TypeGuard[LinearisableModel]:
    """Return whether the inner loop of a recommender has a linearised form."""
    if not isinstance(model, LinearisableModel) or model.has_repeat_feature or model.prior_penalty:
        return False
    return isinstance(model, LinearisedDotProduct) or isinstance(model.loss, FullSoftmax)


class Linearisation(NamedTuple):
    """The gradient of an entry's inner loss at the prior, and its slope, on the grid.

    The gradient for a user vector prior + change is mean + covariance change - scale x, where x is
    the input vector of the entry.
    """

    mean: Tensor  # [dim]
    covariance: Tensor  # [dim, dim]
    bound: Tensor  # []: upper bound of the eigenvalues of the covariance
    scale: Tensor  # []: 1 with the full softmax


def linearise(model: LinearisableModel) -> Linearisation:
    """Return the linearised inner loop of a recommender; one pass over all items."""
    scores = model.biases[:, 0]
    if isinstance(model, DotProduct):
        scores = model.predict_all(model.user_prior[None])[0]
    mean, covariance = quantized_moments(model.table, scores)
    scale = torch.ones_like(mean[0])
    if isinstance(model, LinearisedDotProduct):
        scale = quantize(model.entry_scale, STATE_BITS)
        mean = quantize(scale * mean + covariance @ model.user_prior, STATE_BITS)
    return Linearisation(mean, covariance, curvature_bound(covariance), scale)


@lru_cache(maxsize=2)
def linearisations(quantized: StackedRecommenders) -> Linearisation:
    """Return the linearisations of all runs, with a leading axis of runs; cached by stack."""
    return Linearisation(*quantized.call(linearise))


def predicted_score(
    model: LinearisableModel,
    linear: Linearisation,
    evidence: Evidence,
    items: Tensor,
    rounding: Rounding,
) -> Tensor:
    """Return scores of items after the linearised inner loop, [rows, n].

    Args:
        model: The recommender, on the fixed-point grid.
        linear: Its linearisation.
        evidence: Sketch entries.
        items: Items to score, [rows, n].
        rounding: Applied after each inner step.
    """
    aged = evidence._replace(age=evidence.age.clamp_max(MAX_AGE))
    weight = model.effective_weights(aged, rounding)
    gradient = (_directions(model, linear, aged.item) * weight[:, :, None]).sum(1)
    total, rate = weight.sum(1), WeightedEntries.step_size(model, aged)
    rate = stable_rate(rate, total, linear.bound)[:, None]
    change = torch.zeros_like(gradient)
    for _ in range(model.inner_steps):
        change = rounding(
            change + rate * (gradient - total[:, None] * (change @ linear.covariance))
        )
    return _prior_scores(model, items) + model.item_products(items, change)


def linearised_softmax_model(
    quantized: StackedRecommenders, items: Tensor, size: int
) -> LinearisedSoftmaxModel:
    """Return the tables from which kernels compute predicted scores.

    Args:
        quantized: The recommenders of all runs, on the fixed-point grid.
        items: Items that the tables contain, [n].
        size: Largest size of a sketch.
    """
    device, runs = items.device, quantized.runs
    ages = torch.arange(MAX_AGE + 1, device=device).double().expand(runs, 1, -1)
    slots = torch.arange(size + 1, device=device).expand(runs, -1)
    every = items.expand(runs, 1, -1)

    def tables(
        model: LinearisableModel, items: Tensor, linear: Linearisation, ages: Tensor, slots: Tensor
    ) -> tuple[Tensor, ...]:
        age_weight = quantize(model.weight_factor(ages, torch.ones_like(ages)), STATE_BITS)
        rate = WeightedEntries.step_size(model, Evidence.new(slots, slots, slots, slots))
        direction, intercept = _directions(model, linear, items), _prior_scores(model, items)
        return model.item_vectors(items)[0], intercept[0], direction[0], rate, age_weight[0]

    linear = Linearisation(*quantized.call(linearise))
    found = quantized.call(tables, every, linear, ages, slots)
    vectors, intercept, direction, rate, age_weight = found
    return LinearisedSoftmaxModel(
        vectors, intercept, direction, linear.covariance, linear.bound, rate, age_weight,
        quantized.template.inner_steps,
    )  # fmt: skip


def _directions(model: LinearisableModel, linear: Linearisation, items: Tensor) -> Tensor:
    """[rows, n, dim] minus the gradients of entries at the prior."""
    return quantize(linear.scale * model.input_vectors(items), STATE_BITS) - linear.mean


def _prior_scores(model: LinearisableModel, items: Tensor) -> Tensor:
    """[rows, n] scores of items for the prior."""
    return model.predict(model.user_prior.expand(len(items), -1), items)
