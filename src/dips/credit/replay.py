"""The yardstick: walk every history again under the current parameters, differentiably, all paths.

Slow and exact but for straight-through: weights are kept for all interactions so far, those that
were dropped included, and every refresh is differentiated in its scores and in the weights before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dips.numerics.relaxation import drop_one, keep_k
from dips.recommender.base import Evidence, Recommender
from dips.recommender.sketch_filter import outcomes
from dips.sketch.records import Candidates, Sketch, empty
from dips.sketch.selection import Greedy, Selector
from dips.sketch.update import join
from dips.stream.schedule import Schedule

Weigh = Callable[[Candidates, Tensor], Tensor]
"""Scores [users, n] of all interactions so far, given their weights [users, n]; high means keep."""


class Choice(NamedTuple):
    """A refresh as it was decided: a constant."""

    kept: Tensor  # [users, seen] bool
    offset: Tensor  # [users, seen] what makes the relaxed weights 0 or 1


class Replayed(NamedTuple):
    """What a replay predicts and what it chose."""

    losses: Tensor  # [users, T]; 0 beyond the end of a history
    choices: list[Choice]  # one per refresh


def replay(
    weigh: Weigh,
    model: Recommender,
    past: Candidates,
    size: int,
    schedule: Schedule,
    *,
    choices: Sequence[Choice] = (),
    selector: Selector | None = None,
    identity: bool = False,
    since: int = 0,
) -> Replayed:
    """The loss of every prediction, connected to the parameters of `weigh` and of the model.

    `past` [users, T] holds whole histories, position -1 beyond their ends. With the `choices` of an
    earlier replay these are taken again, and the losses are smooth in the parameters. With
    `identity` weights pass through the refreshes after their own unchanged, as in the paper.
    Losses before step `since` are left out: [users, T - since].
    """
    select, longest = selector or Greedy(), past.item.shape[1]
    nothing = empty(len(past.item), 1, past.item.device)
    entries = [field[:, 1:] for field in _joined(past, nothing, 0, size).entries]
    sketch, taken = Sketch(*entries), list(choices)
    weight, met = torch.ones_like(past.rating[:, :size]), sketch.repeats
    filling = range(since, weight.shape[1])
    losses = [_losses(model, past, weight[:, :t], met, t, t + 1, t) for t in filling]
    refreshes = list(schedule.refreshes(size, longest - 1))
    ends = [*(seen for seen, _ in refreshes), longest]
    losses.append(_losses(model, past, weight, met, max(size, since), ends[0], size))
    for turn, (seen, period) in enumerate(refreshes):
        candidates = _joined(past, sketch, seen - period, seen)
        weight = torch.cat([weight, torch.ones_like(past.rating[:, :period])], 1)
        given = weight.detach() if identity else weight
        scores = weigh(candidates._replace(position=past.position[:, :seen]), given)
        relaxed = drop_one(scores, given) if period == 1 else keep_k(scores, given, size)
        relaxed = relaxed + (weight - given)
        if not choices:
            slots = select.choose(scores.detach(), candidates, size)
            kept = torch.zeros_like(relaxed.detach()).scatter(1, slots, 1.0)
            taken.append(Choice(kept > 0, kept - relaxed.detach()))
        weight = relaxed + taken[turn].offset
        position = torch.where(taken[turn].kept, past.position[:, :seen], -1)
        sketch = candidates.entries._replace(position=position)
        met = sketch.repeats
        losses.append(_losses(model, past, weight, met, max(seen, since), ends[turn + 1], size))
    return Replayed(torch.cat(losses, 1), taken)


def _joined(past: Candidates, sketch: Sketch, first: int, last: int) -> Candidates:
    """All interactions before `last`; those that the sketch has dropped stand at position -1."""
    arrivals = Sketch(*(field[:, first:last] for field in past.entries))
    return join(sketch, arrivals, torch.full_like(past.seen, last), past.key)


def _losses(
    model: Recommender, past: Candidates, weight: Tensor, met: Tensor, first: int, last: int,
    slots: int,
) -> Tensor:  # fmt: skip
    """[users, last - first] losses of these interactions after reading the weighted ones.

    `met` [users, seen] is how often each was met while it was remembered.
    """
    if last <= first:
        return past.rating[:, :0]
    if (
        model.has_recency_decay and last > first + 1
    ):  # as time goes on, the same sketch is read otherwise
        steps = range(first, last)
        return torch.cat([_losses(model, past, weight, met, t, t + 1, slots) for t in steps], 1)
    width = max(1, weight.shape[1])
    evidence = Evidence(
        past.token[:, :width],
        past.rating[:, :width],
        torch.nn.functional.pad(weight, (0, width - weight.shape[1])),
        torch.full_like(past.seen, slots),
        (first - 1 - past.position[:, :width]).clamp_min(0).to(weight.dtype),
        met[:, :width].clamp_min(1).to(weight.dtype),
    )
    ahead = slice(first, last)
    next_ones = (past.token[:, ahead], past.rating[:, ahead])
    losses = outcomes(model, model.read(evidence), evidence, *next_ones)
    return torch.where(past.present[:, ahead], losses, 0.0)
