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
from dips.recommender.stacked import Stack
from dips.sketch.records import Candidates, Sketch


def is_linear(model: Recommender) -> bool:
    """Whether it is the dot product with squared error, and time does not count."""
    squared = isinstance(model, DotProduct) and isinstance(model.loss, SquaredError)
    return squared and not model.has_times


def is_answered(asks: Sequence[str], model: Recommender) -> bool:
    """Whether programs can answer all these questions."""
    if not set(asks) <= {"residual", "hunch", "embedding"}:
        return False
    if not isinstance(model, NCF) or model.has_times:
        return False
    quick = "hunch" not in asks or is_quick(model)
    return quick and ("residual" not in asks or is_linear(model))


def teller_of(
    asks: Sequence[str], stack: Stack, settled: Stack, items: Tensor, size: int
) -> Reader | Listener | None:
    """Who answers them from sketches up to this size.

    `settled` has tables of these items [n] alone; a hunch needs a look at the whole catalogue.
    """
    if "hunch" in asks:
        return listener_of(stack.settled(), items, size)
    return reader_of(settled, size) if "residual" in asks else None


def vectors_of(settled: Stack) -> Tensor:
    """[runs, items, dim] the vectors of all items."""
    vectors: Tensor = settled.call(lambda model: model.table)
    return vectors


@lru_cache(maxsize=2)
def reader_of(settled: Stack, size: int) -> Reader:
    """The dot product as it reads sketches of this size; kept, so of a stack that stands still."""
    template, state = settled.template, settled.state
    entries = torch.arange(size + 1, device=state["loading"].device).expand(settled.runs, -1)
    rate = settled.call(lambda model, n: model.rate(Evidence.new(n, n, n, n)), entries)
    pull = torch.full_like(state["loading"], 2 * template.inner_pull)
    return Reader(
        vectors_of(settled),
        settled.call(lambda model: model.biases[:, 0] + model.offset),
        state["user_prior"],
        torch.cat([torch.stack([state["loading"], pull], 1), rate], 1),
        template.inner_steps,
        bool(template.inner_pull),
    )


def residuals(settled: Stack, sketch: Sketch, candidates: Candidates) -> Tensor | None:
    """[rows, candidates] `StackSignals.residual` from compiled loops; None: not possible."""
    plain = sketch.item.device.type == "cpu" and installed("numba")
    if not plain or not is_linear(settled.template):
        return None
    item = torch.where(sketch.present, sketch.item, -1)
    glance = Glance(item, sketch.rating, candidates.item, candidates.rating)
    return numba_launch.residuals(glance, reader_of(settled, item.shape[1]))
