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

MOST = 1 - 1e-6
"""Of all chances no more is struck out: what is predicted has one."""


def is_struck(model: Recommender) -> TypeGuard[DotProduct]:
    """Whether losses of predictions depend on what was struck out: where credit can tell."""
    return isinstance(model, DotProduct) and model.strikes and isinstance(model.loss, FullSoftmax)


def outcomes(
    model: Recommender, user: Tensor, evidence: Evidence, items: Tensor, ratings: Tensor
) -> Tensor:
    """[rows, n] loss of each interaction that comes after this sketch."""
    losses = model.losses(user, items, ratings)
    if not is_struck(model):
        return losses
    norm = losses[:, :1] + model.predict(user, items[:, :1])
    gone = [struck(model, user, evidence, item, norm).sum(1) for item in items.unbind(1)]
    return losses + torch.log1p(-torch.stack(gone, 1).clamp_max(MOST))


def struck(
    model: DotProduct, user: Tensor, evidence: Evidence, target: Tensor, norm: Tensor
) -> Tensor:
    """[rows, n] of all chances, those of which entries deprive their items before this target.

    `norm` [rows, 1] is the logarithm of the sum of all items' chances.
    """
    item, weight = evidence.item, evidence.weight
    same = (item[:, :, None] == item[:, None, :]) & (weight[:, None, :] > 0)
    again = same.tril(-1).any(2) | (item == target[:, None])
    chance = (model.predict(user, item) - norm).exp()
    return torch.where(again, 0.0, weight * chance)
