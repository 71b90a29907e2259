"""The dot product with a softmax over all items, on the CPU, where compiled loops do the work."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from dips.kernels import softmax_cpu
from dips.kernels.softmax_cpu import Effects, Reading, Total
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import FullSoftmax
from dips.recommender.sketch_filter import is_struck


def is_looped(model: Recommender) -> TypeGuard[DotProduct]:
    """Whether it is that, and there are loops for it."""
    whole = isinstance(model, DotProduct) and isinstance(model.loss, FullSoftmax)
    return whole and not model.has_times and softmax_cpu.fits(model.user_prior)


def total_loss(model: DotProduct, evidence: Evidence, item: Tensor, mass: Tensor) -> Tensor:
    """[] the losses of predicting `item` [rows] from these sketches, summed with weights [rows]."""
    total: Tensor = Total.apply(*_reading(model, evidence), item, mass)[0]  # type: ignore[no-untyped-call]
    return total


def effects(
    model: DotProduct, evidence: Evidence, item: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[rows] losses, [rows, dim] `Listwise.pull`, [rows] `Listwise.common` of predictions.

    The last are the users' vectors [rows, dim] after reading, without items' own entries.
    """
    loading = model.own if model.has_own else None
    struck = evidence.weight if is_struck(model) else None
    found = Effects.apply(*_reading(model, evidence), item, loading, struck)  # type: ignore[no-untyped-call]
    loss, pull, common, user = found
    return loss, pull, common, user


def scores(model: DotProduct, evidence: Evidence) -> Tensor:
    """[rows, items] scores of all items after reading these sketches; never differentiated."""
    return softmax_cpu.scores(_reading(model, evidence))


def _reading(model: DotProduct, evidence: Evidence) -> Reading:
    """What the softmax descends on, without a number for each item."""
    table, bias, loading = model.all_items
    square = torch.zeros_like(bias[0]) if loading is None else loading**2
    weight = model.counted(evidence)
    pulled = (model.told(evidence.item) * weight[:, :, None]).sum(1)
    return Reading(
        table, bias, square, weight, model.user_prior, pulled, model.rate(evidence),
        evidence.item, model.prior_penalty, model.inner_steps,
    )  # fmt: skip
