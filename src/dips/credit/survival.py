"""Credit that fades with the chance to stay: an interaction kept now may be dropped at the next.

The straight-through derivative of a refresh in the weights before it, scores held: an entry passes
on what it is worth in the next sketch as far as it stays there, and as far as it goes, what would
be dropped in its place is worth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.credit.queue import follows, later
from dips.numerics.relaxed import level


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
    bounded: bool = False,
) -> Tensor:
    """[decisions, n] effect of the weights after a decision on it and its next `length` - 1.

    `value` [decisions, n] is the effect on the decision's own predictions, `score` how much to keep
    each, `weight` 1 for candidates and 0 for ghosts (dropped before, still `tracked`), `position`
    what an entry is recognised by in the next decision of the same `owner` [decisions]. What is no
    longer tracked there counts as dropped. After s sweeps every row looks s decisions ahead.
    """
    candidate = (weight > 0) & tracked
    stay, share = _chances(torch.where(tracked, score, 0.0), candidate, size, bounded)
    place, found = _matches(position, tracked)
    onward = follows(owner, 1)[:, None] & tracked
    value = torch.where(tracked, value, 0.0)
    credit = value
    for _ in range(min(length, len(owner)) - 1):
        mean = (share * credit).sum(1, keepdim=True)
        passed = later(stay * (credit - mean), 1).gather(1, place)
        ahead = later(mean, 1) + torch.where(found, passed, 0.0)
        credit = value + torch.where(onward, ahead, 0.0)
    return credit


def _chances(score: Tensor, candidate: Tensor, size: int, bounded: bool) -> tuple[Tensor, Tensor]:
    """[decisions, n] the chance to stay, and the share in what is dropped instead.

    One of size + 1 goes by the softmax; of more, `size` stay by the projection. The softmax can
    say of a ghost that more than all of it goes; `bounded` asks as if it were a candidate.
    """
    online = (candidate.sum(1) == size + 1)[:, None]
    removal = torch.where(candidate, -score, -torch.inf)
    total = removal.logsumexp(1, keepdim=True)
    go = (-score - total).exp()
    ghost = torch.where(candidate, go, (-score - total).sigmoid()) if bounded else go
    nu = level(score, candidate, size)
    kept = (score.double() + nu).sigmoid()
    slack = torch.where(candidate, kept * (1 - kept), 0.0)
    mix = slack / slack.sum(1, keepdim=True).clamp_min(1e-300)
    stay = torch.where(online, 1 - ghost, kept.to(score.dtype))
    return stay, torch.where(online, torch.where(candidate, go, 0.0), mix.to(score.dtype))


def _matches(position: Tensor, tracked: Tensor) -> tuple[Tensor, Tensor]:
    """[decisions, n] where each entry stands in the next decision, and whether it does."""
    same = (position[:, :, None] == later(position, 1)[:, None, :]) & tracked[:, :, None]
    same = same & later(tracked, 1)[:, None, :]
    return same.int().argmax(2), same.any(2)
