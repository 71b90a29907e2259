"""Signals of stacked recommenders about candidates, on the fixed-point grid.

User states are quantized, so no value depends on which other users are in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dips.numerics.chunks import rows_per_chunk
from dips.numerics.fixed_point import STATE_BITS, quantize
from dips.recommender.base import Evidence, Recommender
from dips.recommender.kernel_inputs import residuals
from dips.recommender.losses import SampledLoss
from dips.recommender.predicted_score import (
    LinearisableModel,
    Linearisation,
    is_linearisable,
    linearisations,
    predicted_score,
)
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch
from dips.sketch.signals import Reading, Signals

CHUNK = {"cpu": 1 << 24, "cuda": 1 << 27}
"""Largest number of elements in the widest intermediate tensor of a full softmax, by device."""


def rounding(value: Tensor) -> Tensor:
    """Return a user state rounded to the fixed-point grid of decisions."""
    return quantize(value, STATE_BITS)


def as_evidence(entries: Sketch, weight: Tensor, seen: Tensor) -> Evidence:
    """Return sketch entries in the form that a recommender reads.

    Args:
        entries: The entries of each row's sketch, [rows, n].
        weight: Their weights z, [rows, n]; 0 in empty slots.
        seen: Number of interactions of each row's user so far, [rows]; ages count from there.
    """
    age = torch.where(entries.present, seen[:, None] - 1 - entries.position, 0).double()
    slots, repeats = (weight > 0).sum(1), entries.repeats.clamp_min(1).double()
    return Evidence(entries.token, entries.rating.double(), weight, slots, age, repeats)


def recommender_signals(
    quantized: StackedRecommenders, sketch: Sketch, candidates: Candidates
) -> Signals:
    """Return the signals of stacked recommenders about the candidates of a refresh.

    Rows are in run-major order: the first rows belong to the first run.

    Args:
        quantized: The recommenders of all runs, on the fixed-point grid.
        sketch: The sketches before the refresh, [rows, size].
        candidates: The candidates of the refresh, [rows, candidates].
    """
    entries = as_evidence(candidates.entries, candidates.present.double(), candidates.seen)
    by_run = partial(_by_run, quantized)

    def adapt(kept: Sketch, weight: Tensor) -> Tensor:
        """Return users [rows, dim] after the inner loop on these entries (Eq. 7)."""
        return by_run(_read, as_evidence(kept, weight, candidates.seen))

    @cache
    def user() -> Tensor:
        return adapt(sketch, sketch.present.double())

    def residual() -> Tensor:
        compiled = residuals(quantized, sketch, candidates)
        if compiled is not None:
            return compiled
        template = quantized.template  # a softmax over all items is stored whole
        width = max(template.elements_per_row, template.items) if template.loss.listwise else 0
        return by_run(_residual, entries, user(), width=width)

    def score() -> Tensor:
        if not is_linearisable(quantized.template):
            return by_run(_predicted, entries, user())
        evidence = as_evidence(sketch, sketch.present.double(), candidates.seen)
        known = linearisations(quantized)
        width = candidates.item.shape[1] * known.mean.shape[1]
        return by_run(_approximate, candidates.item, evidence, known=known, width=width)

    def read(weights: Tensor) -> Reading:
        adapted = adapt(candidates.entries, weights.double())
        return Reading(
            losses=lambda: by_run(_losses, entries, adapted),
            influences=lambda damping: by_run(partial(_influences, damping), entries, adapted),
        )

    return Signals(
        {
            "loss": lambda: by_run(_losses, entries, user()),
            "residual": residual,
            "predicted_score": score,
            "embedding": lambda: by_run(_embedding, candidates.item),
        },
        read,
    )


def _by_run(
    stack: StackedRecommenders,
    function: Callable[..., Any],
    *rows: Any,
    known: Sequence[Tensor] = (),
    width: int = 0,
) -> Tensor:
    """Return `function(model, *known, *rows)` for the rows of every run, computed in chunks.

    Args:
        stack: The recommenders of all runs.
        function: Takes one run's recommender, then what is `known`, then its rows.
        rows: Tensors, or tuples of tensors, whose first axis is rows in run-major order.
        known: Tensors with a leading axis of runs; they are not split into chunks.
        width: Elements of the widest intermediate tensor per row; 0: as for a prediction.
    """
    runs = stack.runs
    fields = tree_map(lambda field: field.reshape(runs, -1, *field.shape[1:]), rows)
    first = fields[0] if isinstance(fields[0], Tensor) else fields[0][0]
    chunk = rows_per_chunk(
        CHUNK[first.device.type], (width or stack.template.elements_per_row) * runs, first.device
    )
    found = [
        stack.call(function, *known, *tree_map(lambda f, at=low: f[:, at : at + chunk], fields))
        for low in range(0, first.shape[1], chunk)
    ]
    return torch.cat(found, 1).flatten(0, 1).detach()


def _read(model: Recommender, evidence: Evidence) -> Tensor:
    return model.read(evidence, rounding)


def _embedding(model: Recommender, items: Tensor) -> Tensor:
    return model.embedding(items)


def _losses(model: Recommender, entries: Evidence, user: Tensor) -> Tensor:
    return model.losses(user, entries.item, entries.rating)


def _predicted(model: Recommender, entries: Evidence, user: Tensor) -> Tensor:
    """Return predicted ratings, standardised for squared error, or scores of items."""
    return model.loss.estimate(model.predict(user, entries.item))


def _approximate(
    model: LinearisableModel, mean: Tensor, covariance: Tensor, bound: Tensor, scale: Tensor,
    items: Tensor, evidence: Evidence,
) -> Tensor:  # fmt: skip
    linear = Linearisation(mean, covariance, bound, scale)
    return predicted_score(model, linear, evidence, items, rounding)


def _residual(model: Recommender, entries: Evidence, user: Tensor) -> Tensor:
    """Return minus the slope of each loss; for squared error twice the standardised error."""
    if isinstance(model.loss, SampledLoss):
        return -model.with_negatives(model.loss.derivative, user, entries.item)
    if model.loss.listwise:
        return 1 - model.predict_all(user).softmax(-1).gather(-1, entries.item)
    rating = model.standardise(entries.rating)
    slope = -model.loss.derivative(model.predict(user, entries.item), rating)
    return slope if model.loss.channels == 1 else slope.sum(-1)


def _influences(damping: float, model: Recommender, entries: Evidence, user: Tensor) -> Tensor:
    """Return influences of weights (Eq. 11); decayed entries count less on both sides."""
    factor = rounding(model.weight_factor(entries.age, entries.repeats))
    weight = factor * entries.weight
    return factor * model.influences(user, entries.item, entries.rating, weight, damping)
