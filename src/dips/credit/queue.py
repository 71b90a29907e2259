"""Credit by a queue of decisions: Eq. 10, with or without a discount.

Eq. 10 sums v_t . (z_1 + ... + z_t) over predictions t. Here the two sums are swapped: a decision
gets the entry gradients v_t of the predictions of its next `length` decisions, itself included.
Decisions are in order of time, those of one user consecutive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from dips.credit.adjoint import Adjoint, entry_gradient, is_additive
from dips.credit.base import CreditAssignment
from dips.credit.decisions import CreditedDecisions
from dips.recommender.base import Evidence, Recommender
from dips.recommender.ncf import embed
from dips.sketch.records import Candidates


@final
@dataclass(frozen=True)
class QueueCredit(CreditAssignment):
    """The paper's credit (Eq. 10): later refreshes pass entry weights on unchanged.

    Args:
        length: Decisions over which a choice gets credit (Q); 1 is DiPS@1.
    """

    length: int

    def credit(self, batch: CreditedDecisions) -> Tensor:
        """Return sums of entry gradients over the next `length` decisions."""
        return stacked_queue_credit(batch, batch.inputs.candidates, self.length)

    def returns(self, values: Tensor, owner: Tensor) -> Tensor:
        """Return sums of values over the next `length` decisions of the same user."""
        return windowed_sum(values, owner, self.length)


@final
@dataclass(frozen=True)
class DiscountedCredit(CreditAssignment):
    """Eq. 10 with a discount: a prediction n decisions later counts discount^n.

    Args:
        length: Decisions over which a choice gets credit (Q).
        discount: Factor per decision, from 0 to 1.
    """

    length: int
    discount: float

    def credit(self, batch: CreditedDecisions) -> Tensor:
        """Return discounted sums of entry gradients over the next `length` decisions."""
        candidates = batch.inputs.candidates
        return stacked_queue_credit(batch, candidates, self.length, self.discount)

    def returns(self, values: Tensor, owner: Tensor) -> Tensor:
        """Return discounted sums of values over the next `length` decisions of the same user."""
        return windowed_sum(values, owner, self.length, self.discount)


class Timeline(NamedTuple):
    """Positions of interactions and of predictions in their users' histories."""

    position: Tensor  # [decisions, candidates]
    step: Tensor  # [rows] number of interactions before each prediction

    def age(self, row: Tensor) -> Tensor:
        """Return the ages [decisions, candidates] of interactions at predictions [decisions]."""
        return (self.step[row.clamp_min(0)][:, None] - 1 - self.position).clamp_min(0)


@torch.no_grad()
def stacked_queue_credit(
    batch: CreditedDecisions, candidates: Candidates, length: int, discount: float = 1.0
) -> Tensor:
    """Return `queue_credit` of these entries [runs * decisions, n] for every run of a stack."""
    runs = batch.stack.runs

    def one_run(
        model: Recommender, adjoint: Adjoint, prediction_rows: Tensor, owner: Tensor,
        entries: Evidence, timeline: Timeline,
    ) -> Tensor:  # fmt: skip
        return queue_credit(
            model, adjoint, prediction_rows, owner, entries, length, discount, timeline
        )

    def split(field: Tensor) -> Tensor:
        return field.view(runs, -1, *field.shape[1:])

    rating = split(candidates.rating)
    entries = Evidence(
        split(candidates.token), rating, split(candidates.present).to(rating.dtype),
        split(candidates.seen),
        torch.zeros_like(rating), split(candidates.repeats).to(rating.dtype),
    )  # fmt: skip
    timeline = Timeline(split(candidates.position), batch.step)
    owner = split(batch.inputs.owner)
    credit: Tensor = batch.stack.call(
        one_run, batch.adjoint, batch.prediction_places, owner, entries, timeline
    )
    return credit.flatten(0, 1)


def queue_credit(
    model: Recommender,
    adjoint: Adjoint,
    prediction_rows: Tensor,
    owner: Tensor,
    entries: Evidence,
    length: int,
    discount: float = 1.0,
    timeline: Timeline | None = None,
) -> Tensor:
    """Return the credit of each entry of each decision: Eq. 10 with the sums swapped.

    Args:
        model: Recommender of the predictions.
        adjoint: Adjoint of each prediction, [rows, ...].
        prediction_rows: Predictions made from a decision's sketch, as rows of the adjoint,
            [decisions, longest period]. -1 counts for nothing.
        owner: User of each decision, [decisions]; -1 where there is no decision.
        entries: Interactions that get credit, [decisions, n].
        length: Decisions over which an entry gets credit (Q).
        discount: Factor per decision; 1 is the paper's.
        timeline: When entries and predictions happened. Needed if the model has recency decay,
            repeat scores that decay, or reads in order.

    Returns:
        [decisions, n]
    """
    if is_additive(adjoint) and not model.has_recency_decay:
        per_decision = [_sum_over_predictions(field, prediction_rows) for field in adjoint]
        sums = [windowed_sum(field, owner, length, discount) for field in per_decision]
        return entry_gradient(model, type(adjoint)(*sums), entries)
    total = torch.zeros_like(entries.rating)
    for lag in range(min(length, len(owner))):
        ahead = torch.where(has_later(owner, lag)[:, None], later(prediction_rows, lag), -1)
        for row in ahead.unbind(1):
            if timeline is not None:
                entries = entries._replace(age=timeline.age(row).to(total.dtype))
            value = entry_gradient(model, _take(adjoint, row), entries)
            total = total + discount**lag * torch.where(row[:, None] >= 0, value, 0.0)
    return total


def windowed_sum(field: Tensor, owner: Tensor, length: int, discount: float = 1.0) -> Tensor:
    """Return discounted sums [decisions, ...] over the next `length` decisions of the same user.

    Sums of 1, 2, 4, ... decisions are combined by the binary digits of the length. Unlike
    differences of prefix sums this has no cancellation.
    """
    total, reach = torch.zeros_like(field), 0
    power, span = field, 1
    left = min(length, len(owner))
    while left:
        if left & 1:
            total = _add_later(total, power, owner, reach, discount**reach)
            reach += span
        left >>= 1
        if left:
            power = _add_later(power, power, owner, span, discount**span)
            span *= 2
    return total


def later(field: Tensor, lag: int) -> Tensor:
    """Return the field `lag` decisions later; 0 past the end."""
    return torch.cat([field[lag:], torch.zeros_like(field[:lag])])


def has_later(owner: Tensor, lag: int) -> Tensor:
    """Return whether [decisions] the same user has a decision `lag` decisions later."""
    return (later(owner + 1, lag) == owner + 1) & (owner >= 0)


def _add_later(field: Tensor, other: Tensor, owner: Tensor, lag: int, factor: float) -> Tensor:
    """Return a field plus `factor` times what the same user has `lag` decisions later."""
    last = len(owner) - lag
    same = has_later(owner, lag)[:last].to(field.dtype).view(-1, *[1] * (field.dim() - 1))
    near = torch.addcmul(field[:last], same, other[lag:], value=factor)
    return torch.cat([near, field[last:]]) if lag else near


def _sum_over_predictions(field: Tensor, prediction_rows: Tensor) -> Tensor:
    """Return sums [decisions, ...] of a field over the predictions of each decision."""
    parts = [_at(field, row) for row in prediction_rows.unbind(1)]
    there = (prediction_rows >= 0).view(*prediction_rows.shape, *[1] * (field.dim() - 1))
    return sum(
        (torch.where(there[:, place], part, 0.0) for place, part in enumerate(parts)),
        start=torch.zeros_like(parts[0]),
    )


def _at(field: Tensor, row: Tensor) -> Tensor:
    """Return a field [decisions, ...] at these rows; any row where there is none."""
    flat = field.flatten(1) if field.dim() > 1 else field[:, None]
    return embed(flat, row.clamp_min(0)).reshape(len(row), *field.shape[1:])


def _take(adjoint: Adjoint, row: Tensor) -> Adjoint:
    """Return the adjoints of these predictions; any one where there is none."""
    return type(adjoint)(*(_at(field, row) for field in adjoint))
