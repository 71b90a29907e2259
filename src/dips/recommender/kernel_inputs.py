"""What compiled loops know of a recommender: the dot product, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dips.kernels import numba_launch
from dips.kernels.numba_launch import installed
from dips.kernels.triton_launch import Glance, Listener, Reader
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import SquaredError
from dips.recommender.ncf import NCF
from dips.recommender.predicted_score import is_quick, listener_of
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch


def is_linear(model: Recommender) -> bool:
    """Whether it is the dot product with squared error, and time does not count."""
    squared = isinstance(model, DotProduct) and isinstance(model.loss, SquaredError)
    return squared and not model.has_times


def is_answered(required_signals: Sequence[str], model: Recommender) -> bool:
    """Whether programs can answer all these questions."""
    if not set(required_signals) <= {"residual", "predicted_score", "embedding"}:
        return False
    if not isinstance(model, NCF) or model.has_times:
        return False
    quick = "predicted_score" not in required_signals or is_quick(model)
    return quick and ("residual" not in required_signals or is_linear(model))


def teller_of(
    required_signals: Sequence[str],
    stack: StackedRecommenders,
    quantized: StackedRecommenders,
    items: Tensor,
    size: int,
) -> Reader | Listener | None:
    """Who answers them from sketches up to this size.

    `quantized` has tables of these items [n] alone; a predicted_score needs a look at the whole catalogue.
    """
    if "predicted_score" in required_signals:
        return listener_of(stack.quantized(), items, size)
    return reader_of(quantized, size) if "residual" in required_signals else None


def vectors_of(quantized: StackedRecommenders) -> Tensor:
    """[runs, items, dim] the vectors of all items."""
    vectors: Tensor = quantized.call(lambda model: model.table)
    return vectors


@lru_cache(maxsize=2)
def reader_of(quantized: StackedRecommenders, size: int) -> Reader:
    """The dot product as it reads sketches of this size; kept, so of a stack that stands still."""
    template, state = quantized.template, quantized.state
    entries = torch.arange(size + 1, device=state["loading"].device).expand(quantized.runs, -1)
    rate = quantized.call(lambda model, n: model.rate(Evidence.new(n, n, n, n)), entries)
    pull = torch.full_like(state["loading"], 2 * template.prior_penalty)
    return Reader(
        vectors_of(quantized),
        quantized.call(lambda model: model.biases[:, 0] + model.offset),
        state["user_prior"],
        torch.cat([torch.stack([state["loading"], pull], 1), rate], 1),
        template.inner_steps,
        bool(template.prior_penalty),
    )


def residuals(
    quantized: StackedRecommenders, sketch: Sketch, candidates: Candidates
) -> Tensor | None:
    """[rows, candidates] `Signals.residual` from compiled loops; None: not possible."""
    plain = sketch.item.device.type == "cpu" and installed("numba")
    if not plain or not is_linear(quantized.template):
        return None
    item = torch.where(sketch.present, sketch.item, -1)
    glance = Glance(item, sketch.rating, candidates.item, candidates.rating)
    return numba_launch.residuals(glance, reader_of(quantized, item.shape[1]))
