"""What was met may come back: scores that items have for having been read, whatever they are like.

For recommenders that read in order; where items come back, naming the old ones again beats them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dips.recommender.base import Evidence

START = (1.0, 4.0, 2.0, 0.5)
"""At first: gain, log of the odds, log of the age where these begin to fall, and how fast they do
(before softplus).
"""


def own_scores(loading: Tensor, item: Tensor, weight: Tensor, age: Tensor, items: int) -> Tensor:
    """[rows, items] gain * log(1 + odds * what an item's entries [rows, n] count for together).

    An entry counts for weight / (1 + age / scale)^power; an item without any scores 0. With a gain
    of 1 chances are mixed: of what an item is like, and of how often and lately it was met.
    """
    gain, odds, scale, power = loading.unbind()
    lasting = (-functional.softplus(power) * (age * (-scale).exp()).log1p()).exp()
    nothing = torch.zeros_like(weight.sum(1, keepdim=True)).expand(-1, items)
    return gain * (odds.exp() * nothing.scatter_add(1, item, weight * lasting)).log1p()


def meetings(evidence: Evidence) -> Tensor:
    """[rows, n] weights times how often each entry's item was met that no older entry tells of.

    Where nothing is forgotten every entry tells of itself; one that was kept in place of others
    tells of them as well.
    """
    item, weight, repeats = evidence.item, evidence.weight, evidence.repeats
    same = (item[:, :, None] == item[:, None, :]) & (weight[:, None, :] > 0)
    before = torch.where(same.tril(-1), repeats[:, None, :], 0).amax(2) if item.shape[1] else 0
    return weight * (repeats - before).clamp_min(1)
