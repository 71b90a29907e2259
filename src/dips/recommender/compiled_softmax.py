"""Dot products with a softmax over all items, computed by kernels on the CPU."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from dips.kernels import dispatch
from dips.kernels.dispatch import SoftmaxEntryGradients, SoftmaxLoss, SoftmaxProblem
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.filtered_loss import filters_in_loss
from dips.recommender.losses import FullSoftmax


def has_compiled_softmax(model: Recommender) -> TypeGuard[DotProduct]:
    """Return whether the functions of this file support a recommender."""
    softmax = isinstance(model, DotProduct) and isinstance(model.loss, FullSoftmax)
    return softmax and not model.has_times and dispatch.has_cpu_softmax(model.user_prior)


def total_loss(
    model: DotProduct, evidence: Evidence, item: Tensor, weight: Tensor, seen: Tensor
) -> Tensor:
    """Return the weighted sum of prediction losses; it can be differentiated once.

    Args:
        model: A recommender with `has_compiled_softmax`.
        evidence: Sketches, [rows, n].
        item: Predicted items, [rows].
        weight: Weights of their losses, [rows].
        seen: Items that are filtered from the softmax of the prediction, [rows, n]; -1 pads.
    """
    problem = _problem(model, evidence)
    total: Tensor = SoftmaxLoss.apply(*problem, item, weight, seen)[0]  # type: ignore[no-untyped-call]
    return total


def compiled_adjoint(
    model: DotProduct, evidence: Evidence, item: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return losses of predictions, and the adjoint of their inner loops.

    Args:
        model: A recommender with `has_compiled_softmax`.
        evidence: Sketches, [rows, n].
        item: Predicted items, [rows].
        seen: Items that are filtered from the softmax of the prediction, [rows, n]; -1 pads.

    Returns:
        Losses [rows]; `total` and `common` of `credit.adjoint.SoftmaxAdjoint`; user vectors after
        the inner loop [rows, dim], without repeat entries.
    """
    repeat_scale = model.repeat_scale if model.has_repeat_feature else None
    filtered = evidence.weight if filters_in_loss(model) else None
    problem = _problem(model, evidence)
    loss, total, common, user = SoftmaxEntryGradients.apply(  # type: ignore[no-untyped-call]
        *problem, item, repeat_scale, filtered, seen
    )
    return loss, total, common, user


def scores(model: DotProduct, evidence: Evidence) -> Tensor:
    """Return the scores of all items after the inner loop, [rows, items]; not differentiable."""
    return dispatch.softmax_scores(_problem(model, evidence))


def _problem(model: DotProduct, evidence: Evidence) -> SoftmaxProblem:
    """Return the inner problem of sketches (Eqs. 7-8) as kernels read it."""
    table, bias, repeat_scale = model.all_items
    square = torch.zeros_like(bias[0]) if repeat_scale is None else repeat_scale**2
    weight = model.effective_weights(evidence)
    feature_sum = (model.input_vectors(evidence.item) * weight[:, :, None]).sum(1)
    return SoftmaxProblem(
        table, bias, square, weight, model.user_prior, feature_sum, model.step_size(evidence),
        evidence.item, model.prior_penalty, model.inner_steps,
    )  # fmt: skip
