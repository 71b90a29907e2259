"""Describe recommenders to the kernels: plain specifications, and tensors on the fixed-point grid.

`dips.kernels.dispatch` decides from the specification whether kernels exist.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import torch
from torch import Tensor

from dips.kernels import dispatch
from dips.kernels.dispatch import ModelSpec
from dips.kernels.layout import LinearisedSoftmaxModel, ResidualInputs, SquaredErrorModel
from dips.recommender.base import Evidence, Recommender
from dips.recommender.losses import FullSoftmax, SquaredError
from dips.recommender.ncf import NCF
from dips.recommender.predicted_score import is_linearisable, linearised_softmax_model
from dips.recommender.stacked import StackedRecommenders
from dips.recommender.weighted_entries import WeightedEntries
from dips.sketch.records import Candidates, Sketch


def model_spec(model: Recommender) -> ModelSpec:
    """Return what `dispatch` needs to know to support a recommender.

    Args:
        model: One recommender; of stacked recommenders the template.
    """
    dot = isinstance(model, WeightedEntries)
    kind = "dot" if dot else "mlp" if isinstance(model, NCF) else "other"
    losses = {SquaredError: "mse", FullSoftmax: "softmax"}
    return ModelSpec(
        kind=kind,
        loss=losses.get(type(model.loss), "other"),
        has_times=isinstance(model, NCF) and model.has_times,
        is_linearisable=is_linearisable(model),
        dim=model.vectors.shape[1] if isinstance(model, NCF) else 0,
    )


def signal_model(
    signals: Collection[str],
    recommenders: StackedRecommenders,
    quantized: StackedRecommenders,
    items: Tensor,
    size: int,
) -> SquaredErrorModel | LinearisedSoftmaxModel | None:
    """Return the recommenders of all runs as kernels compute signals from them.

    Args:
        signals: Names of the signals that a policy reads.
        recommenders: The recommenders with all items: a linearised softmax sums over them.
        quantized: The recommenders on the fixed-point grid, with tables of `items` only.
        items: [n] the items in the tables.
        size: Largest sketch.

    Returns:
        None if the policy reads no signal, or embeddings only.
    """
    if "predicted_score" in signals:
        return linearised_softmax_model(recommenders.quantized(), items, size)
    squared = {"residual", "loss", "read"} & set(signals)
    return squared_error_model(quantized, size) if squared else None


def item_vectors(quantized: StackedRecommenders) -> Tensor:
    """Return the vectors of all items, [runs, items, dim]."""
    vectors: Tensor = quantized.call(lambda model: model.table)
    return vectors


@lru_cache(maxsize=2)
def squared_error_model(quantized: StackedRecommenders, size: int) -> SquaredErrorModel:
    """Return dot products with squared error as kernels adapt them to sketches.

    Args:
        quantized: Recommenders on the fixed-point grid, whose parameters do not change: the result
            is cached.
        size: Largest sketch.
    """
    template, state = quantized.template, quantized.state
    loading = state["user_bias_scale"]
    entries = torch.arange(size + 1, device=loading.device).expand(quantized.runs, -1)
    rate = quantized.call(lambda model, n: model.step_size(Evidence.new(n, n, n, n)), entries)
    penalty = torch.full_like(loading, 2 * template.prior_penalty)
    scale = [loading, penalty, state["rating_center"], state["rating_spread"]]
    return SquaredErrorModel(
        item_vectors(quantized),
        quantized.call(lambda model: model.biases[:, 0] + model.offset),
        state["user_prior"],
        torch.cat([torch.stack(scale, 1), rate], 1),
        template.inner_steps,
        bool(template.prior_penalty),
    )


def residuals(
    quantized: StackedRecommenders, sketch: Sketch, candidates: Candidates
) -> Tensor | None:
    """Return residuals of candidates from kernels; None: use the reference path.

    Args:
        quantized: Recommenders of all runs on the fixed-point grid.
        sketch: [rows, size] sketches before the refresh, in run-major order.
        candidates: [rows, candidates].

    Returns:
        [rows, candidates] float64: 2 (rating - prediction), in standardised ratings.
    """
    if not dispatch.has_residuals(model_spec(quantized.template), sketch.item.device):
        return None
    item = torch.where(sketch.present, sketch.item, -1)
    inputs = ResidualInputs(item, sketch.rating, candidates.item, candidates.rating)
    return dispatch.residuals(inputs, squared_error_model(quantized, item.shape[1]))
