"""Credit by survival: an entry kept now may be dropped by a later decision of the same policy.

The Jacobian d z_{l+1} / d z_l of Eq. 9 is the straight-through derivative of a refresh with
constant scores. Let stay_i be the probability that entry i stays at decision l + 1, and share_k the
share of entry k in what is dropped there. The credit is the recursion

    g_l[i] = v_l[i] + stay_i * g_{l+1}[i] + (1 - stay_i) * sum_k share_k * g_{l+1}[k]

The last term is the credit of the entry that would be dropped instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from dips.credit.base import CreditAssignment
from dips.credit.decisions import CreditedDecisions, current_signals, with_dropped_candidates
from dips.credit.queue import has_later, later, stacked_queue_credit
from dips.numerics.relaxation import top_k_multiplier

MAX_MATRIX_WIDTH = 32
"""With more entries than this, the recursion costs less than multiplying transition matrices."""


@final
@dataclass(frozen=True)
class SurvivalCredit(CreditAssignment):
    """Credit that decays with the probability that the policy keeps an entry.

    Args:
        length: Decisions over which a choice gets credit (Q).
        dropped_candidates: Earlier decisions whose dropped candidates are followed, with weight 0.
            Only policies that take weights (`StackedPolicies.takes_weights`) can score them.
    """

    length: int
    dropped_candidates: int = 0

    @torch.no_grad()
    def credit(self, batch: CreditedDecisions) -> Tensor:
        """Return the recursion over the next `length` decisions, for the candidates only."""
        policies, width = batch.policies, batch.inputs.kept.shape[1]
        dropped = self.dropped_candidates if policies.takes_weights else 0
        tracked, weight = with_dropped_candidates(batch.inputs, dropped, width - batch.size)
        entries, signals = tracked.candidates, current_signals(batch.stack, policies, tracked)
        scores = policies.call(
            policies.state, entries, signals, weight if policies.takes_weights else None
        )
        return survival_credit(
            stacked_queue_credit(batch, entries, 1),
            scores,
            weight,
            entries.present,
            entries.position,
            batch.inputs.owner,
            batch.size,
            self.length,
            bounded=True,
            online=width == batch.size + 1,
        )[:, :width]


class Transition(NamedTuple):
    """Slopes of the weights after a user's next decision in those after this one.

    As a matrix [n, n] it has `stays` at the place of an entry in the next decision, plus `leaves`
    times the `share` of each next entry in what is dropped.
    """

    place: Tensor  # [decisions, n] place of an entry in the next decision
    stays: Tensor  # [decisions, n] probability that it stays; 0 where it is no longer tracked
    leaves: Tensor  # [decisions, n] probability that it is dropped; 0 without a next decision
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
    """Return the credit of entries over a decision and the next `length` - 1 of the same user.

    Args:
        value: Entry gradients of the decision's own predictions, [decisions, n].
        score: Scores of the policy, [decisions, n]; high means keep.
        weight: 1 for candidates, 0 for dropped candidates that are still tracked, [decisions, n].
        tracked: Which slots hold an entry, [decisions, n]. An entry that is not tracked at the next
            decision counts as dropped there.
        position: Place in the user's history, [decisions, n]; it identifies an entry.
        owner: User of each decision, [decisions]; -1 where there is none.
        size: Sketch size K.
        length: Decisions over which an entry gets credit (Q).
        bounded: Compute the probability of a dropped candidate as if it were a candidate. Without
            it the softmax can exceed 1 there.
        online: Every decision drops exactly one candidate.

    Returns:
        [decisions, n]
    """
    candidate = (weight > 0) & tracked
    probabilities = _online_probabilities if online else _probabilities
    stay, share = probabilities(torch.where(tracked, score, 0.0), candidate, size, bounded)
    place, found = _next_places(position, tracked)
    goes_on = has_later(owner, 1)[:, None] & tracked
    stays = torch.where(goes_on & found, later(stay, 1).gather(1, place), 0.0).to(value.dtype)
    leaves = goes_on.to(value.dtype) - stays
    transition = Transition(place, stays, leaves, later(share, 1).to(value.dtype))
    value = torch.where(tracked, value, 0.0)
    accumulate = by_recursion if value.shape[1] > MAX_MATRIX_WIDTH else by_doubling
    return accumulate(value, transition, min(length, len(owner)))


def by_recursion(value: Tensor, transition: Transition, length: int) -> Tensor:
    """Return credit over `length` decisions: each pass looks one decision further ahead."""
    place, stays, leaves, share = transition
    credit = value
    for _ in range(length - 1):
        ahead = later(credit, 1)
        mean = (share * ahead).sum(1, keepdim=True)
        credit = value + stays * ahead.gather(1, place) + leaves * mean
    return credit


def by_doubling(value: Tensor, transition: Transition, length: int) -> Tensor:
    """Return credit over `length` decisions from sums of 1, 2, 4, ... decisions."""
    place, stays, leaves, share = transition
    matrix = leaves[:, :, None] * share[:, None, :]
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


def _online_probabilities(
    score: Tensor, candidate: Tensor, size: int, bounded: bool
) -> tuple[Tensor, Tensor]:
    """Return stay probabilities and drop shares [decisions, n] where one is dropped (Eq. 4)."""
    del size
    removal = torch.where(candidate, -score, -torch.inf)
    total = removal.logsumexp(1, keepdim=True)
    drop = (-score - total).exp()
    any_drop = torch.where(candidate, drop, (-score - total).sigmoid()) if bounded else drop
    return 1 - any_drop, torch.where(candidate, drop, 0.0)


def _probabilities(
    score: Tensor, candidate: Tensor, size: int, bounded: bool
) -> tuple[Tensor, Tensor]:
    """Return stay probabilities and drop shares [decisions, n] by Eq. 4 or, for batches, Eq. 5."""
    online = (candidate.sum(1) == size + 1)[:, None]
    nu = top_k_multiplier(score, candidate, size)
    kept = (score.double() + nu).sigmoid()
    slack = torch.where(candidate, kept * (1 - kept), 0.0)
    mix = slack / slack.sum(1, keepdim=True).clamp_min(1e-300)
    stay, share = _online_probabilities(score, candidate, size, bounded)
    return (
        torch.where(online, stay, kept.to(score.dtype)),
        torch.where(online, share, mix.to(score.dtype)),
    )


def _next_places(position: Tensor, tracked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place [decisions, n] of each entry in the next decision, and if it has one."""
    same = (position[:, :, None] == later(position, 1)[:, None, :]) & tracked[:, :, None]
    same = same & later(tracked, 1)[:, None, :]
    return same.int().argmax(2), same.any(2)
