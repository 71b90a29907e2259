"""What the sketch holds does not come back: then it is no rival of what does, in the softmax.

A weight strikes an item out as far as it goes: by 1 wholly. What is predicted is never struck out.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import FullSoftmax

LEAST = 1e-3
"""Of all chances at least so much is left: less is rounding, where sums are not exact."""


def is_struck(model: Recommender) -> TypeGuard[DotProduct]:
    """Whether losses of predictions depend on what was struck out: where credit can tell."""
    dot = isinstance(model, DotProduct) and not model.has_own
    return dot and model.filters_sketch and isinstance(model.loss, FullSoftmax)


def outcomes(
    model: Recommender, user: Tensor, evidence: Evidence, items: Tensor, ratings: Tensor
) -> Tensor:
    """[rows, n] loss of each interaction that comes after this sketch."""
    losses = model.losses(user, items, ratings)
    if not is_struck(model):
        return losses
    norm = losses[:, :1] + model.predict(user, items[:, :1])
    gone = struck(model, user, evidence, norm)
    rest = [left(before(item, evidence, gone)) for item in items.unbind(1)]
    return losses + torch.stack(rest, 1).log()


def struck(model: DotProduct, user: Tensor, evidence: Evidence, norm: Tensor) -> Tensor:
    """[rows, n] of all chances, those that entries strike out; whoever came twice, once.

    `norm` [rows, 1] is the logarithm of the sum of the exponents of all scores.
    """
    item, weight = evidence.item, evidence.weight
    same = (item[:, :, None] == item[:, None, :]) & (weight[:, None, :] > 0)
    chance = (model.predict(user, item) - norm).exp()
    return torch.where(same.tril(-1).any(2), 0.0, weight * chance)


def before(target: Tensor, evidence: Evidence, gone: Tensor) -> Tensor:
    """[rows, n] the chances that are `gone` before this target [rows]: its own never is."""
    return torch.where(evidence.item == target[:, None], 0.0, gone)


def left(gone: Tensor) -> Tensor:
    """[rows] of all chances, what is left."""
    return (1 - gone.sum(1)).clamp_min(LEAST)
