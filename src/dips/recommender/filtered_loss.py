"""Losses of predictions without the items of the sketch: they do not repeat.

The items are filtered from the softmax. The ranking is filtered in `Recommender.filtered_scores`.
An entry of weight z removes the share z of its item's probability. The target is never removed.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, SampledSoftmax

MIN_REMAINING = 1e-3
"""Lower bound of the remaining probability: less would be rounding error."""


def filters_in_loss(model: Recommender) -> TypeGuard[DotProduct | LinearisedDotProduct]:
    """Return whether the losses of predictions depend on which items are filtered.

    Then the gradient with respect to entry weights contains the filter, too.
    """
    if not model.masks_sketch:
        return False
    if isinstance(model, LinearisedDotProduct):
        return not model.has_repeat_feature and isinstance(model.loss, FullSoftmax | SampledSoftmax)
    dot = isinstance(model, DotProduct) and not model.has_repeat_feature
    return dot and isinstance(model.loss, FullSoftmax)


def prediction_losses(
    model: Recommender, user: Tensor, evidence: Evidence, items: Tensor, ratings: Tensor
) -> Tensor:
    """Return the loss of each interaction predicted after a sketch, [rows, n] (Eq. 1).

    Args:
        model: The recommender.
        user: User vectors adapted to the sketch, [rows, user_dim].
        evidence: The entries of the sketch.
        items: Items to predict, [rows, n].
        ratings: Their ratings, [rows, n].
    """
    losses = model.losses(user, items, ratings)
    if not filters_in_loss(model):
        return losses
    log_norm = losses + model.predict(user, items)  # with negatives it depends on the target
    rest = []
    for place, item in enumerate(items.unbind(1)):
        removed = filtered_probabilities(model, user, evidence, log_norm[:, place, None])
        rest.append(remaining_probability(without_target(item, evidence, removed)))
    return losses + torch.stack(rest, 1).log()


def filtered_probabilities(
    model: Recommender, user: Tensor, evidence: Evidence, log_norm: Tensor
) -> Tensor:
    """Return the probability that each entry removes, [rows, n]; duplicates remove nothing more.

    Args:
        model: The recommender.
        user: User vectors, [rows, user_dim].
        evidence: The entries of the sketch.
        log_norm: Log of the sum of exponentiated scores of all items, [rows, 1].
    """
    item, weight = evidence.item, evidence.weight
    same = (item[:, :, None] == item[:, None, :]) & (weight[:, None, :] > 0)
    probability = (model.predict(user, item) - log_norm).exp()
    return torch.where(same.tril(-1).any(2), 0.0, weight * probability)


def without_target(target: Tensor, evidence: Evidence, removed: Tensor) -> Tensor:
    """Return removed probabilities [rows, n] that are 0 for the target item [rows]."""
    return torch.where(evidence.item == target[:, None], 0.0, removed)


def remaining_probability(removed: Tensor) -> Tensor:
    """Return the probability that remains, [rows]."""
    return (1 - removed.sum(1)).clamp_min(MIN_REMAINING)
