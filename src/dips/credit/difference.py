"""Loss differences: the loss of a prediction with an entry in the sketch, less the loss without it.

An entry gradient (`adjoint.py`) is the slope of the loss at the end of the inner loop. It is taken
at weight 1 for entries of the sketch and at weight 0 for dropped candidates. The effect of an entry
saturates, and a squared error grows with the square of the change. So the slope understates what a
kept entry contributes, and overstates a dropped one, most of all if the entry is hard to predict.
The difference has neither error:

    d[i] = loss(sketch with i) - loss(sketch without i)

For a dot product with squared error the inner loop (Eq. 7) is linear, so it runs on residuals and
the Gram matrix of the candidates alone, for all n + 1 sketches at once: O(n^3) per step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.credit.decisions import CreditedDecisions
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import SquaredError
from dips.sketch.records import Candidates


def supports_differences(model: Recommender) -> bool:
    """Return whether `loss_differences` is defined: dot product with squared error."""
    return isinstance(model, DotProduct) and isinstance(model.loss, SquaredError)


@torch.no_grad()
def stacked_differences(
    batch: CreditedDecisions, candidates: Candidates, in_sketch: Tensor
) -> Tensor:
    """Return loss differences of each entry, summed over the predictions of its decision.

    Args:
        batch: Decisions, and the predictions that give them credit.
        candidates: Entries of each decision, [runs * decisions, n]: candidates, and dropped
            candidates of earlier decisions.
        in_sketch: Which entries are in the sketch after the decision, [runs * decisions, n].

    Returns:
        [runs * decisions, n]; 0 in empty slots.
    """
    runs = batch.stack.runs

    def split(field: Tensor) -> Tensor:
        return field.view(runs, -1, *field.shape[1:])

    rating = split(candidates.rating)
    weight = split(in_sketch & candidates.present).to(rating.dtype)
    entries = Evidence.new(split(candidates.token), rating, weight, split(in_sketch.sum(1)))
    event = batch.trace.event[batch.predicted.clamp_min(0)]
    columns = batch.trace.columns
    targets = columns.token[event], columns.rating[event]  # [runs, predictions]

    def one_run(
        model: Recommender, entries: Evidence, present: Tensor, places: Tensor,
        item: Tensor, rating: Tensor,
    ) -> Tensor:  # fmt: skip
        assert isinstance(model, DotProduct)
        place = places.clamp_min(0)
        return loss_differences(model, entries, present, item[place], rating[place], places >= 0)

    found: Tensor = batch.stack.call(
        one_run, entries, split(candidates.present), batch.prediction_places, *targets
    )
    return found.flatten(0, 1)


@torch.no_grad()
def loss_differences(
    model: DotProduct,
    entries: Evidence,
    present: Tensor,
    item: Tensor,
    rating: Tensor,
    counted: Tensor,
) -> Tensor:
    """Return loss(sketch with the entry) - loss(sketch without it), for every entry.

    Args:
        model: Dot product with squared error.
        entries: Interactions in question, [rows, n]; weight 1 in the sketch, 0 if dropped. `slots`
            fixes the step size, which is the same for all compared sketches.
        present: Which slots hold an interaction, [rows, n].
        item: Predicted items, [rows, predictions].
        rating: Their ratings, [rows, predictions].
        counted: Which predictions count, [rows, predictions].

    Returns:
        Differences summed over the predictions, [rows, n]; 0 in empty slots.
    """
    count = entries.item.shape[1]
    items = torch.cat([entries.item, item], 1)
    features = model.features(items)  # [rows, n + predictions, dim]
    user = model.initial_user(len(items))[:, :, None]
    target = model.standardise(torch.cat([entries.rating, rating], 1)) - model.intercept(items)
    start = features @ user - target[:, :, None]  # [rows, n + predictions, 1]
    gram = features @ features[:, :count].mT  # [rows, n + predictions, n]
    weight = _one_changed(entries.weight, present)  # [rows, n, 1 + n]
    rate = 2 * model.step_size(entries)[:, None, None]
    residual = start.expand(-1, -1, 1 + count)
    for _ in range(model.inner_steps):  # Eq. 7, multiplied by the features
        change = gram @ (weight * residual[:, :count]) + model.prior_penalty * (residual - start)
        residual = residual - rate * change
    errors = torch.where(counted[:, :, None], residual[:, count:], 0.0)
    losses = errors.square().sum(1)  # [rows, 1 + n]
    change = losses[:, 1:] - losses[:, :1]
    value = torch.where(entries.weight > 0, -change, change)
    return torch.where(present, value, 0.0)


def _one_changed(weight: Tensor, present: Tensor) -> Tensor:
    """Return [rows, n, 1 + n]: the weights, then the weights with entry 0, 1, ... in or out."""
    one = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    other = torch.where(present, 1 - weight, 0.0)
    changed = weight[:, :, None] * (1 - one) + other[:, :, None] * one
    return torch.cat([weight[:, :, None], changed], 2)
