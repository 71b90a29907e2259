"""Recommenders that only count: popularity, a first-order Markov model and item-kNN.

What has parameters should beat them. Pure functions: counts in, scores of all items out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dips.data.interactions import Interactions, ragged
from dips.recommender.base import Evidence

Device = torch.device | str
BLOCK = 512
"""Items whose counts with all others are held at once."""
TIE = 1e-6
"""The weight of popularity beside neighbours: it decides only where they do not."""


class MemoryBased(NamedTuple):
    """The items that go best with each item."""

    item: Tensor  # [items, near] int64
    score: Tensor  # [items, near]


def popularity(data: Interactions) -> Tensor:
    """[items] how often each was met."""
    return torch.bincount(events(data), minlength=data.items)


def followers(data: Interactions, near: int, device: Device = "cpu") -> MemoryBased:
    """The items that came next most often, with their share: a first-order Markov model."""
    item, user = events(data).to(device), owners(data).to(device)
    same = user[1:] == user[:-1]
    before, after = item[:-1][same], item[1:][same]
    pair, count = torch.unique(before * data.items + after, return_counts=True)
    before, after = pair // data.items, pair % data.items
    total = torch.zeros(data.items, device=device).index_add_(0, before, count.float())
    return _nearest(before, after, count / total[before], data.items, near)


def companions(
    data: Interactions, near: int, shrink: float = 0.0, device: Device = "cpu"
) -> MemoryBased:
    """The items that share most users, as a cosine (item-kNN), held down where few are shared."""
    met = (owners(data) * data.items + events(data)).to(device)
    met = torch.unique(met)  # user after user
    user, item = met // data.items, met % data.items
    fans = torch.bincount(item, minlength=data.items)
    length = torch.bincount(user, minlength=data.users)
    start, root = length.cumsum(0) - length, fans.float().sqrt()
    found = []
    for first in range(0, data.items, BLOCK):
        block = min(BLOCK, data.items - first)
        mine = ((item >= first) & (item < first + block)).nonzero()[:, 0]
        one, place = _spread(length[user[mine]])  # each with everything else of the user
        own, other = item[mine][one] - first, item[start[user[mine]][one] + place]
        apart = other != first + own  # nobody is a neighbour of himself
        pair, shared = torch.unique((own * data.items + other)[apart], return_counts=True)
        own, other = pair // data.items, pair % data.items
        cosine = shared / (root[first + own] * root[other] + shrink)
        found.append(_nearest(own, other, cosine, block, near))
    return MemoryBased(*(torch.cat(fields) for fields in zip(*found, strict=True)))


def recall(near: MemoryBased, popular: Tensor, evidence: Evidence, fade: float = 1.0) -> Tensor:
    """[rows, items] what goes with the entries of a sketch, added up; each counts `fade` of the
    next newer one. Where nothing does, and between equals, the more popular comes first.
    """
    age = evidence.slots[:, None] - 1 - torch.arange(evidence.item.shape[1], device=popular.device)
    weight = evidence.weight * fade ** age.clamp_min(0)
    scores = weight[:, :, None] * near.score[evidence.item]
    start = (TIE * popular / popular.sum()).expand(len(weight), -1)
    return start.scatter_add(1, near.item[evidence.item].flatten(1), scores.flatten(1))


def _nearest(own: Tensor, other: Tensor, score: Tensor, items: int, near: int) -> MemoryBased:
    """Of pairs with a score the best `near` of each of the items; item 0 at a score of 0 pads."""
    order = score.argsort(descending=True, stable=True)
    order = order[own[order].argsort(stable=True)]
    own, other, score = own[order], other[order], score[order]
    _, place = _spread(torch.bincount(own, minlength=items))
    kept = place < near
    start = torch.zeros(items, near, device=score.device)
    table = MemoryBased(start.long(), start)
    table.item[own[kept], place[kept]] = other[kept]
    table.score[own[kept], place[kept]] = score[kept]
    return table


def _spread(count: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of so many entries each, laid out flat: the row of every entry, and its place there."""
    row = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    return row, torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]


def events(data: Interactions) -> Tensor:
    """[events] the items of all users, user after user."""
    return torch.from_numpy(data.item[ragged(data.starts, data.lengths)].astype(np.int64))


def owners(data: Interactions) -> Tensor:
    """[events] whose they are."""
    return torch.repeat_interleave(torch.arange(data.users), torch.from_numpy(data.lengths.copy()))
