"""Predicted scores from a linearised inner loop: cheap enough for every decision of a policy.

Near the prior, the mean of all item vectors by predicted probability changes with the user vector
by their covariance. With that linear model, inner steps need no sum over items. For the dot product
with a full softmax and no item-id feature; other recommenders adapt to the sketch exactly.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from dips.kernels.layout import LinearisedSoftmaxModel
from dips.numerics import fixed_point
from dips.numerics.descent import Rounding
from dips.numerics.fixed_point import STATE_BITS, quantize
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import FullSoftmax
from dips.recommender.stacked import StackedRecommenders

MAX_AGE = (1 << 12) - 1
"""Ages above this count as this age."""


def is_linearisable(model: Recommender) -> TypeGuard[DotProduct]:
    """Return whether the inner loop of a recommender has a linearised form."""
    dot = isinstance(model, DotProduct) and not model.has_repeat_feature and not model.prior_penalty
    return dot and isinstance(model.loss, FullSoftmax)


class Linearisation(NamedTuple):
    """Moments of all item vectors by the probabilities that the prior predicts, on the grid."""

    mean: Tensor  # [dim]
    covariance: Tensor  # [dim, dim]: derivative of the mean in the user vector
    bound: Tensor  # []: upper bound of the eigenvalues of the covariance


def linearise(model: DotProduct) -> Linearisation:
    """Return the linearisation of a recommender's softmax at the prior; one pass over all items."""
    probability = fixed_point.softmax(model.predict_all(model.user_prior[None]))[0]
    mean = quantize(probability @ model.table, STATE_BITS)
    second = (model.table * probability[:, None]).T @ model.table
    covariance = quantize(second - mean[:, None] * mean, STATE_BITS)
    return Linearisation(mean, covariance, covariance.abs().sum(1).amax())


@lru_cache(maxsize=2)
def linearisations(quantized: StackedRecommenders) -> Linearisation:
    """Return the linearisations of all runs, with a leading axis of runs; cached by stack."""
    return Linearisation(*quantized.call(linearise))


def predicted_score(
    model: DotProduct, linear: Linearisation, evidence: Evidence, items: Tensor, rounding: Rounding
) -> Tensor:
    """Return approximate scores of items after the inner loop, [rows, n].

    Args:
        model: The recommender, on the fixed-point grid.
        linear: Its linearisation.
        evidence: Sketch entries.
        items: Items to score, [rows, n].
        rounding: Applied after each inner step.
    """
    aged = evidence._replace(age=evidence.age.clamp_max(MAX_AGE))
    weight = model.effective_weights(aged, rounding)
    gradient = ((model.input_vectors(aged.item) - linear.mean) * weight[:, :, None]).sum(1)
    total, rate = weight.sum(1), model.step_size(aged)
    rate = (rate / (rate * total * linear.bound).clamp_min(1))[:, None]
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
        model: DotProduct, items: Tensor, mean: Tensor, ages: Tensor, slots: Tensor
    ) -> tuple[Tensor, ...]:
        age_weight = quantize(model.weight_factor(ages, torch.ones_like(ages)), STATE_BITS)
        rate = model.step_size(Evidence.new(slots, slots, slots, slots))
        direction, intercept = model.input_vectors(items) - mean, _prior_scores(model, items)
        return model.item_vectors(items)[0], intercept[0], direction[0], rate, age_weight[0]

    linear = Linearisation(*quantized.call(linearise))
    found = quantized.call(tables, every, linear.mean, ages, slots)
    vectors, intercept, direction, rate, age_weight = found
    return LinearisedSoftmaxModel(
        vectors, intercept, direction, linear.covariance, linear.bound, rate, age_weight,
        quantized.template.inner_steps,
    )  # fmt: skip


def _prior_scores(model: DotProduct, items: Tensor) -> Tensor:
    """[rows, n] scores of items for the prior."""
    return model.predict(model.user_prior.expand(len(items), -1), items)
