"""Losses of predictions without items that do not repeat: those of the sketch, or all seen ones.

The items are filtered from the softmax. The target is never filtered.

| setting         | filtered items                               | entry gradient has the filter |
|-----------------|----------------------------------------------|-------------------------------|
| `filter_sketch` | sketch; weight z removes the share z         | yes: the policy decides them  |
| `filter_seen`   | all that the user met before the prediction  | no: the history decides them  |

The ranking is filtered in `evaluation/progressive.py`, that of a service in
`Recommender.filtered_scores`.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, SampledSoftmax
from dips.recommender.repeat_scores import RepeatScores

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
    model: Recommender,
    user: Tensor,
    evidence: Evidence,
    items: Tensor,
    ratings: Tensor,
    seen: Tensor | None = None,
) -> Tensor:
    """Return the loss of each interaction predicted after a sketch, [rows, n] (Eq. 1).

    Args:
        model: The recommender.
        user: User vectors adapted to the sketch, [rows, user_dim].
        evidence: The entries of the sketch.
        items: Items to predict, [rows, n].
        ratings: Their ratings, [rows, n].
        seen: Items that are filtered whatever the sketch holds, [rows, m]; -1 pads.
    """
    if seen is not None and seen.shape[1]:
        return losses_without(model, user, items, ratings, seen)
    losses = model.losses(user, items, ratings)
    if not filters_in_loss(model):
        return losses
    log_norm = losses + model.predict(user, items)  # with negatives it depends on the target
    rest = []
    for place, item in enumerate(items.unbind(1)):
        removed = filtered_probabilities(model, user, evidence, log_norm[:, place, None])
        rest.append(remaining_probability(without_target(item, evidence, removed)))
    return losses + torch.stack(rest, 1).log()


def losses_without(
    model: Recommender, user: Tensor, items: Tensor, ratings: Tensor, seen: Tensor
) -> Tensor:
    """Return the loss of each interaction without the items that were seen, [rows, n].

    They are left out of the sum over all items, or of the negatives. Nothing is subtracted: seen
    items may have almost all of the probability.

    Args:
        model: A recommender with a softmax over all items or over sampled ones.
        user: User vectors, [rows, user_dim].
        items: Items to predict, [rows, n]. They are not filtered, though they may have been seen.
        ratings: Their ratings, [rows, n].
        seen: Items that are filtered, [rows, m]; -1 pads; with m = 0 none are.
    """
    if not seen.shape[1]:
        return model.losses(user, items, ratings)
    if isinstance(model.loss, SampledSoftmax):
        marks = RepeatScores(seen.clamp_min(0), (seen >= 0).to(user.dtype))
        masked = marks.of_some(model.negatives) > 0
        return model.with_negatives(model.loss.value, user, items, masked)
    if not isinstance(model.loss, FullSoftmax):
        raise ValueError(f"{type(model.loss).__name__} has no softmax to filter seen items from")
    score, log_norm = model.predict(user, items), model.log_norm_without(user, seen)[:, None]
    is_seen = (items[:, :, None] == seen[:, None, :]).any(2)
    return torch.where(is_seen, torch.logaddexp(log_norm, score), log_norm) - score


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
