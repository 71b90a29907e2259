"""Entry gradients of recommenders that read in order, by one backward pass through the reader.

`gru` and `sasrec` have no inner loop. They read entries of weight z (`Sequential.read`) in place of
the inner problem of Eq. 8. So the gradient of a prediction's loss with respect to any weight is
autograd through `read`. Entries outside the sketch are read too, in their places in time, with
weight 0.

| entry                | weight | what its gradient says                        |
|----------------------|--------|-----------------------------------------------|
| in the sketch        | 1      | how the loss changes where it counts less     |
| not in the sketch    | 0      | how the loss changes where it begins to count |
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dips.recommender.base import Evidence, Recommender
from dips.recommender.filtered_loss import prediction_losses

MAX_CHANGE = 30.0
"""Bound of an entry gradient. A target that the sketch filters would have a larger one."""


class SequentialAdjoint(NamedTuple):
    """A prediction and the sketch that it was made from: the pass itself depends on the entries.

    Entries are identified by their ages, which no two interactions of a user share.
    """

    item: Tensor  # [rows, size] entries of the sketch
    rating: Tensor  # [rows, size]
    weight: Tensor  # [rows, size]; 0 in empty slots
    slots: Tensor  # [rows] number of entries
    age: Tensor  # [rows, size] ages at the prediction
    repeats: Tensor  # [rows, size]
    target: Tensor  # [rows] predicted item
    target_rating: Tensor  # [rows]
    seen: Tensor  # [rows, m] items that are filtered from the loss (`filter_seen`); -1 pads

    @property
    def evidence(self) -> Evidence:
        """The sketch as a recommender reads it."""
        return Evidence._make(self[:6])


def sequential_adjoint(
    model: Recommender, evidence: Evidence, item: Tensor, rating: Tensor, seen: Tensor
) -> tuple[Tensor, SequentialAdjoint]:
    """Return losses and adjoint of predictions.

    Args:
        model: Recommender that reads in order.
        evidence: Sketches, [rows, n], the oldest entry first.
        item: Predicted items, [rows].
        rating: Their ratings, [rows].
        seen: Items that are filtered from the loss (`filter_seen`), [rows, m]; -1 pads.

    Returns:
        Losses, [rows], and the adjoint.
    """
    user = model.read(evidence)
    loss = prediction_losses(model, user, evidence, item[:, None], rating[:, None], seen)[:, 0]
    return loss.detach(), SequentialAdjoint(*evidence, item, rating, seen)


def sequential_entry_gradient(
    model: Recommender, adjoint: SequentialAdjoint, entries: Evidence
) -> Tensor:
    """Return the gradient of each prediction's loss with respect to entry weights, [rows, n].

    Args:
        model: Recommender of the adjoint.
        adjoint: Predictions and their sketches.
        entries: Interactions in question, [rows, n], in the sketch or not. Ages are those at the
            prediction: they tell which entries are in the sketch.
    """
    sketch, size = adjoint.evidence, adjoint.item.shape[1]
    same = (entries.age[:, :, None] == sketch.age[:, None, :]) & (sketch.weight[:, None, :] > 0)
    fields = [
        torch.cat([mine, other.to(mine.dtype)], 1)
        for mine, other in zip(sketch, entries._replace(weight=0 * entries.weight), strict=True)
        if mine.dim() > 1
    ]
    order = fields[3].argsort(dim=1, descending=True, stable=True)  # by age: the oldest first
    item, rating, weight, age, repeats = (field.gather(1, order) for field in fields)
    target = adjoint.target[:, None], adjoint.target_rating[:, None]

    def total(weight: Tensor) -> Tensor:
        wide = Evidence(item, rating, weight, sketch.slots, age, repeats)
        return prediction_losses(model, model.read(wide), wide, *target, adjoint.seen).sum()

    in_order: Tensor = torch.func.grad(total)(weight).clamp(-MAX_CHANGE, MAX_CHANGE)
    gradient = torch.zeros_like(in_order).scatter(1, order, in_order)
    kept = gradient[:, :size].gather(1, same.to(torch.int8).argmax(2))
    return torch.where(same.any(2), kept, gradient[:, size:])
