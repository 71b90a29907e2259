"""Credit that fades with the chance to stay: an interaction kept now may be dropped at the next.

The straight-through derivative of a refresh in the weights before it, scores held: an entry passes
on what it is worth in the next sketch as far as it stays there, and as far as it goes, what would
be dropped in its place is worth.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dips.credit.queue import follows, later
from dips.numerics.relaxation import level

WIDE = 32
"""From so many entries on, sweeping costs less than multiplying the transitions."""


class Transition(NamedTuple):
    """How the weights after a decision become those after the same owner's next.

    As a matrix [n, n] of slopes: `stays` at the place where an entry stands next, and for all of
    what goes, `instead` times the `share` of each in what is dropped.
    """

    place: Tensor  # [decisions, n] where an entry stands in the next decision
    stays: Tensor  # [decisions, n] its chance to stay there; 0 where it is not tracked any more
    instead: Tensor  # [decisions, n] its chance to go; 0 where there is no next decision
    share: Tensor  # [decisions, n] of the next decision's entries


@torch.no_grad()
def survival_credit(
    value: Tensor,
    score: Tensor,
    weight: Tensor,
    tracked: Tensor,
    position: Tensor,
    owner: Tensor,
    size: int,
    length: int,
    *,
    bounded: bool = False,
    online: bool = False,
) -> Tensor:
    """[decisions, n] effect of the weights after a decision on it and its next `length` - 1.

    `value` [decisions, n] is the effect on the decision's own predictions, `score` how much to keep
    each, `weight` 1 for candidates and 0 for dropped_candidates (dropped before, still `tracked`), `position`
    what an entry is recognised by in the next decision of the same `owner` [decisions]. What is no
    longer tracked there counts as dropped. `online`: every decision drops one.
    """
    candidate = (weight > 0) & tracked
    chances = _online if online else _either
    stay, share = chances(torch.where(tracked, score, 0.0), candidate, size, bounded)
    place, found = _matches(position, tracked)
    onward = follows(owner, 1)[:, None] & tracked
    stays = torch.where(onward & found, later(stay, 1).gather(1, place), 0.0).to(value.dtype)
    instead = onward.to(value.dtype) - stays
    transition = Transition(place, stays, instead, later(share, 1).to(value.dtype))
    value = torch.where(tracked, value, 0.0)
    gather = swept if value.shape[1] > WIDE else doubled
    return gather(value, transition, min(length, len(owner)))


def swept(value: Tensor, transition: Transition, length: int) -> Tensor:
    """Sums over `length` decisions: after s sweeps every row looks s decisions ahead."""
    place, stays, instead, share = transition
    credit = value
    for _ in range(length - 1):
        ahead = later(credit, 1)
        mean = (share * ahead).sum(1, keepdim=True)
        credit = value + stays * ahead.gather(1, place) + instead * mean
    return credit


def doubled(value: Tensor, transition: Transition, length: int) -> Tensor:
    """The same from sums of 1, 2, 4, ... decisions, put together by the digits of the length."""
    place, stays, instead, share = transition
    matrix = instead[:, :, None] * share[:, None, :]
    matrix = matrix.scatter_add(2, place[:, :, None], stays[:, :, None])  # [decisions, n, n]
    power, span = value[:, :, None], 1  # sums over `span` decisions, and the slopes across them
    total, reach = torch.zeros_like(power), 0
    across = torch.eye(value.shape[1], dtype=value.dtype, device=value.device).expand_as(matrix)
    while length:
        if length & 1:
            total = total + across @ later(power, reach)
            across, reach = across @ later(matrix, reach), reach + span
        length >>= 1
        if length:
            power = power + matrix @ later(power, span)
            matrix, span = matrix @ later(matrix, span), 2 * span
    return total[:, :, 0]


def _online(score: Tensor, candidate: Tensor, size: int, bounded: bool) -> tuple[Tensor, Tensor]:
    """[decisions, n] the chance to stay, and the share in what is dropped: one goes by the softmax.

    The softmax can say of a ghost that more than all of it goes; `bounded` asks as if it were a
    candidate.
    """
    del size
    removal = torch.where(candidate, -score, -torch.inf)
    total = removal.logsumexp(1, keepdim=True)
    go = (-score - total).exp()
    ghost = torch.where(candidate, go, (-score - total).sigmoid()) if bounded else go
    return 1 - ghost, torch.where(candidate, go, 0.0)


def _either(score: Tensor, candidate: Tensor, size: int, bounded: bool) -> tuple[Tensor, Tensor]:
    """The same where of more than size + 1 candidates `size` stay by the projection."""
    online = (candidate.sum(1) == size + 1)[:, None]
    nu = level(score, candidate, size)
    kept = (score.double() + nu).sigmoid()
    slack = torch.where(candidate, kept * (1 - kept), 0.0)
    mix = slack / slack.sum(1, keepdim=True).clamp_min(1e-300)
    stay, share = _online(score, candidate, size, bounded)
    return (
        torch.where(online, stay, kept.to(score.dtype)),
        torch.where(online, share, mix.to(score.dtype)),
    )


def _matches(position: Tensor, tracked: Tensor) -> tuple[Tensor, Tensor]:
    """[decisions, n] where each entry stands in the next decision, and whether it does."""
    same = (position[:, :, None] == later(position, 1)[:, None, :]) & tracked[:, :, None]
    same = same & later(tracked, 1)[:, None, :]
    return same.int().argmax(2), same.any(2)
