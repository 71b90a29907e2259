"""Memory-based recommenders: popularity, a first-order Markov model and item-kNN.

Baselines without parameters. Pure functions: counts in, scores of all items out.
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
"""Number of items whose co-occurrence counts with all others are held at once."""
TIE = 1e-6
"""Weight of popularity beside neighbours: it breaks ties."""


class Neighbours(NamedTuple):
    """The items with the highest scores beside each item."""

    item: Tensor  # [items, near] int64
    score: Tensor  # [items, near]


def popularity(data: Interactions) -> Tensor:
    """Return the number of interactions of each item, [items]."""
    return torch.bincount(event_items(data), minlength=data.items)


def markov_neighbours(data: Interactions, near: int, device: Device = "cpu") -> Neighbours:
    """Return the most frequent next items with their relative frequencies (first-order Markov).

    Args:
        data: Training interactions.
        near: Number of neighbours per item.
        device: Where to count.
    """
    item, user = event_items(data).to(device), event_users(data).to(device)
    same = user[1:] == user[:-1]
    before, after = item[:-1][same], item[1:][same]
    pair, count = torch.unique(before * data.items + after, return_counts=True)
    before, after = pair // data.items, pair % data.items
    total = torch.zeros(data.items, device=device).index_add_(0, before, count.float())
    return _nearest(before, after, count / total[before], data.items, near)


def knn_neighbours(
    data: Interactions, near: int, shrink: float = 0.0, device: Device = "cpu"
) -> Neighbours:
    """Return the items with the highest cosine similarity over users (item-kNN).

    Args:
        data: Training interactions.
        near: Number of neighbours per item.
        shrink: Added to the denominator: lowers similarities from few shared users.
        device: Where to count.
    """
    pairs = (event_users(data) * data.items + event_items(data)).to(device)
    pairs = torch.unique(pairs)  # sorted by user
    user, item = pairs // data.items, pairs % data.items
    users = torch.bincount(item, minlength=data.items)
    length = torch.bincount(user, minlength=data.users)
    start, root = length.cumsum(0) - length, users.float().sqrt()
    found = []
    for first in range(0, data.items, BLOCK):
        block = min(BLOCK, data.items - first)
        inside = ((item >= first) & (item < first + block)).nonzero()[:, 0]
        row, place = _expand(length[user[inside]])  # each with all items of its user
        one, other = item[inside][row] - first, item[start[user[inside]][row] + place]
        different = other != first + one
        pair, shared = torch.unique((one * data.items + other)[different], return_counts=True)
        one, other = pair // data.items, pair % data.items
        cosine = shared / (root[first + one] * root[other] + shrink)
        found.append(_nearest(one, other, cosine, block, near))
    return Neighbours(*(torch.cat(fields) for fields in zip(*found, strict=True)))


def neighbour_scores(
    near: Neighbours, popular: Tensor, evidence: Evidence, decay: float = 1.0
) -> Tensor:
    """Return scores of all items, [rows, items]: summed scores of the entries' neighbours.

    Args:
        near: Neighbours of each item.
        popular: Popularity of each item, [items]; it breaks ties.
        evidence: Sketch entries.
        decay: Weight of an entry relative to the next newer one.
    """
    age = evidence.slots[:, None] - 1 - torch.arange(evidence.item.shape[1], device=popular.device)
    weight = evidence.weight * decay ** age.clamp_min(0)
    scores = weight[:, :, None] * near.score[evidence.item]
    start = (TIE * popular / popular.sum()).expand(len(weight), -1)
    return start.scatter_add(1, near.item[evidence.item].flatten(1), scores.flatten(1))


def _nearest(one: Tensor, other: Tensor, score: Tensor, items: int, near: int) -> Neighbours:
    """Return the best `near` pairs of each item; padded with item 0 at a score of 0."""
    order = score.argsort(descending=True, stable=True)
    order = order[one[order].argsort(stable=True)]
    one, other, score = one[order], other[order], score[order]
    _, place = _expand(torch.bincount(one, minlength=items))
    kept = place < near
    start = torch.zeros(items, near, device=score.device)
    table = Neighbours(start.long(), start)
    table.item[one[kept], place[kept]] = other[kept]
    table.score[one[kept], place[kept]] = score[kept]
    return table


def _expand(count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and the place in its row of each element of rows with these lengths."""
    row = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    return row, torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]


def event_items(data: Interactions) -> Tensor:
    """Return the item of every event, [events], user after user."""
    return torch.from_numpy(data.item[ragged(data.starts, data.lengths)].astype(np.int64))


def event_users(data: Interactions) -> Tensor:
    """Return the user of every event, [events], user after user."""
    return torch.repeat_interleave(torch.arange(data.users), torch.from_numpy(data.lengths.copy()))
