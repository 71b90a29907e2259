"""What was met may come back, or never does: scores for having been read, whatever items are like.

For recommenders that read in order; where items come back, naming the old ones again beats them,
and where they never do, what was read is most like what was read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dips.recommender.base import Evidence

START = (1.0, 4.0, 2.0, 0.5)
"""At first: gain, log of the odds, log of the age where these begin to fall, and how fast they do
(before softplus).
"""
STRUCK = (-5.0, 4.0, 2.0, -10.0)
"""The same where items never come back: about -20, whatever their age."""


class Own(NamedTuple):
    """Scores of what was read, item by item: as narrow as a sketch, however many items there are.

    Each item has one place in a row, other places an item with a score of 0.
    """

    item: Tensor  # [rows, n] int64
    score: Tensor  # [rows, n]

    def of(self, items: Tensor) -> Tensor:
        """[rows, m] the scores of items [rows, m]; 0 for what was not read."""
        same = items[:, :, None] == self.item[:, None, :]
        return torch.where(same, self.score[:, None, :], 0).sum(2)

    def of_some(self, items: Tensor, among: int) -> Tensor:
        """[rows, m] the scores of the same items [m] for all rows, of so many that there are."""
        order = torch.arange(len(items), device=items.device)
        place = torch.full((among,), -1, device=items.device).scatter(0, items, order)
        at = place[self.item]
        nothing = self.score.new_zeros(len(at), len(items))
        found = nothing.scatter_add(1, at.clamp_min(0), torch.where(at >= 0, self.score, 0))
        return found[:, place[items]]  # one that is asked for twice has one place


def own_scores(loading: Tensor, item: Tensor, weight: Tensor, age: Tensor) -> Own:
    """gain * log(1 + odds * what an item's entries [rows, n] count for together).

    An entry counts for weight / (1 + age / scale)^power; an item without any scores 0. With a gain
    of 1 chances are mixed: of what an item is like, and of how often and lately it was met.
    """
    gain, odds, scale, power = loading.unbind()
    lasting = (-functional.softplus(power) * (age * (-scale).exp()).log1p()).exp()
    order = item.argsort(dim=1, stable=True)
    item, counts = item.gather(1, order), (weight * lasting).gather(1, order)
    place = (item != torch.cat([item[:, :1], item[:, :-1]], 1)).cumsum(1)  # the first is at 0
    total = torch.zeros_like(counts).scatter_add(1, place, counts)
    named = torch.zeros_like(item).scatter(1, place, item)
    return Own(named, gain * (odds.exp() * total).log1p())


def meetings(evidence: Evidence) -> Tensor:
    """[rows, n] weights times how often each entry's item was met that no older entry tells of.

    Where nothing is forgotten every entry tells of itself; one that was kept in place of others
    tells of them as well.
    """
    item, weight, repeats = evidence.item, evidence.weight, evidence.repeats
    same = (item[:, :, None] == item[:, None, :]) & (weight[:, None, :] > 0)
    before = torch.where(same.tril(-1), repeats[:, None, :], 0).amax(2) if item.shape[1] else 0
    return weight * (repeats - before).clamp_min(1)
