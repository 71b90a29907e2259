"""The queue, turned around: what a decision's weights did for the next decisions' predictions.

The paper sums v_t . (z_1 + ... + z_t) over predictions t; here the sums are swapped. A decision is
credited with the predictions of its next `length` decisions, itself included. Decisions lie in
order of time, those of a user side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dips.credit.adjoint import Effect, additive, worth
from dips.recommender.base import Recommender
from dips.recommender.ncf import rows_of


class When(NamedTuple):
    """Where interactions and predictions stand in their users' histories, and how often it was."""

    position: Tensor  # [decisions, candidates]
    repeats: Tensor  # [decisions, candidates] as of the decision: it stays so while it is kept
    step: Tensor  # [rows] how many interactions had happened before a prediction

    def age(self, row: Tensor) -> Tensor:
        """[decisions, candidates] how old interactions are at these predictions [decisions]."""
        return (self.step[row.clamp_min(0)][:, None] - 1 - self.position).clamp_min(0)


def queue_credit(
    model: Recommender,
    effect: Effect,
    rows: Tensor,
    owner: Tensor,
    item: Tensor,
    rating: Tensor,
    length: int,
    discount: float = 1.0,
    when: When | None = None,
) -> Tensor:
    """[decisions, candidates] effect of each candidate's weight on what the decision led to.

    `rows` [decisions, hold] are the predictions made from a decision's sketch, as rows of the
    effect; -1 counts for nothing. `owner` [decisions] is the user, -1 where there is no decision;
    `item` and `rating` [decisions, candidates]. Length 1 is DiPS@1; discount 1 is the paper's.
    A recommender in whose eyes interactions fade has to know `when` they were.
    """
    often = None if when is None else when.repeats.to(rating.dtype)
    if additive(effect) and not model.has_recency_decay:
        sums = [windowed(_held(field, rows), owner, length, discount) for field in effect]
        return worth(model, type(effect)(*sums), item, rating, repeats=often)
    total = torch.zeros_like(rating)
    for lag in range(min(length, len(owner))):
        ahead = torch.where(follows(owner, lag)[:, None], later(rows, lag), -1)
        for row in ahead.unbind(1):
            age = None if when is None else when.age(row).to(rating.dtype)
            value = worth(model, _take(effect, row), item, rating, age, often)
            total = total + discount**lag * torch.where(row[:, None] >= 0, value, 0.0)
    return total


def windowed(field: Tensor, owner: Tensor, length: int, discount: float = 1.0) -> Tensor:
    """[decisions, ...] discounted sums over the next `length` decisions of the same owner.

    Sums of 1, 2, 4, ... decisions are put together by the digits of the length: nothing cancels.
    """
    total, reach = torch.zeros_like(field), 0
    power, span = field, 1
    left = min(length, len(owner))
    while left:
        if left & 1:
            total = _plus(total, power, owner, reach, discount**reach)
            reach += span
        left >>= 1
        if left:
            power = _plus(power, power, owner, span, discount**span)
            span *= 2
    return total


def later(field: Tensor, lag: int) -> Tensor:
    """What stands `lag` decisions further on; 0 past the end."""
    return torch.cat([field[lag:], torch.zeros_like(field[:lag])])


def follows(owner: Tensor, lag: int) -> Tensor:
    """[decisions] whether the same owner decides `lag` decisions further on."""
    return (later(owner + 1, lag) == owner + 1) & (owner >= 0)


def _plus(field: Tensor, other: Tensor, owner: Tensor, lag: int, factor: float) -> Tensor:
    """A field plus what the same owner has `lag` decisions further on, times a factor."""
    last = len(owner) - lag
    same = follows(owner, lag)[:last].to(field.dtype).view(-1, *[1] * (field.dim() - 1))
    near = torch.addcmul(field[:last], same, other[lag:], value=factor)
    return torch.cat([near, field[last:]]) if lag else near


def _held(field: Tensor, rows: Tensor) -> Tensor:
    """[decisions, ...] sums of a field over the predictions of each decision."""
    parts = [_at(field, row) for row in rows.unbind(1)]
    there = (rows >= 0).view(*rows.shape, *[1] * (field.dim() - 1))
    return sum(
        (torch.where(there[:, place], part, 0.0) for place, part in enumerate(parts)),
        start=torch.zeros_like(parts[0]),
    )


def _at(field: Tensor, row: Tensor) -> Tensor:
    """[decisions, ...] a field at these rows; anything where there is none."""
    flat = field.flatten(1) if field.dim() > 1 else field[:, None]
    return rows_of(flat, row.clamp_min(0)).reshape(len(row), *field.shape[1:])


def _take(effect: Effect, row: Tensor) -> Effect:
    """The effects of these predictions; any one where there is none."""
    return type(effect)(*(_at(field, row) for field in effect))
