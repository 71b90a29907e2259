"""Baselines from counts: popularity, a Markov model, item-kNN and a linear next-item model.

None is trained by gradient descent. Pure functions: counts in, scores of all items out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dips.data.interactions import Interactions, ragged
from dips.errors import ConfigError
from dips.recommender.base import Evidence

Device = torch.device | str
BLOCK = 512
"""Number of items whose co-occurrence counts with all others are held at once."""
TIE = 1e-6
"""Weight of popularity beside other scores: it breaks ties."""
MAX_LINEAR_ITEMS = 20_000
"""Most items of a linear next-item model: its three matrices then have 4.8 GB."""


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
    weight = _decayed_weights(evidence, decay)
    scores = weight[:, :, None] * near.score[evidence.item]
    start = (TIE * popular / popular.sum()).expand(len(weight), -1)
    return start.scatter_add(1, near.item[evidence.item].flatten(1), scores.flatten(1))


def linear_weights(
    data: Interactions,
    size: int,
    decay: float = 1.0,
    penalty: float = 100.0,
    device: Device = "cpu",
) -> Tensor:
    """Return the weights B of a linear next-item model, [items, items] (SLIT, Choi et al. 2021).

    Ridge regression in closed form: B = (X'X + penalty I)^-1 X'Y. Every event with an earlier one
    is a row. X has the sum of the decayed indicators of the newest `size` items before it, and Y
    has the indicator of its item. X itself is never built: pairs of events are counted by their
    distance.

    Args:
        data: Training interactions.
        size: Number of newest items that a prediction reads (K).
        decay: Weight of an item relative to the next newer one.
        penalty: Weight of the squared norm of B.
        device: Where to count and solve.

    Returns:
        Row i has what one occurrence of item i adds to the scores of all items.

    Raises:
        ConfigError: If there are more than `MAX_LINEAR_ITEMS` items.
    """
    items = data.items
    if items > MAX_LINEAR_ITEMS:
        raise ConfigError(
            f"the linear next-item model has a matrix of items x items, and {data.name} has "
            f"{items:,} items: use item-kNN, or keep at most {MAX_LINEAR_ITEMS:,} items"
        )
    item, user = event_items(data).to(device), event_users(data).to(device)
    _, place = _expand(torch.bincount(user, minlength=data.users))
    later = torch.from_numpy(data.lengths.copy()).to(device)[user] - 1 - place
    powers = decay ** torch.arange(size, device=device)  # weight of an item by age
    shared = torch.cat([powers.new_zeros(1), powers.square().cumsum(0)])
    gram, cross = (torch.zeros(items * items, device=device) for _ in range(2))
    for lag in range(min(size, max(0, len(user) - 1)) + 1):
        same = user[lag:] == user[: len(user) - lag]
        before, after = item[: len(item) - lag][same], item[lag:][same]
        if lag:  # the older item is read with age lag - 1 to predict the newer one
            cross.index_add_(0, before * items + after, powers[lag - 1].expand(len(after)))
        if lag == size:
            break
        # Later predictions read both, until the older one is not among the newest `size`.
        weight = powers[lag] * shared[later[lag:][same].clamp_max(size - lag)]
        gram.index_add_(0, before * items + after, weight)
        if lag:
            gram.index_add_(0, after * items + before, weight)
    factor = gram.view(items, items)
    factor.diagonal().add_(penalty)
    factor = torch.linalg.cholesky(factor)
    del gram
    solution = torch.cholesky_solve(cross.view(items, items), factor)
    del cross, factor
    return solution.contiguous()  # `linear_scores` reads rows


def linear_scores(
    weights: Tensor, popular: Tensor, evidence: Evidence, decay: float = 1.0
) -> Tensor:
    """Return scores of all items, [rows, items]: summed weights of the entries' items.

    Args:
        weights: Result of `linear_weights`, [items, items].
        popular: Popularity of each item, [items]; it breaks ties.
        evidence: Sketch entries.
        decay: Weight of an entry relative to the next newer one, as in `linear_weights`.
    """
    weight = _decayed_weights(evidence, decay)
    scores = nn.functional.embedding_bag(
        evidence.item, weights, per_sample_weights=weight, mode="sum"
    )
    return scores + TIE * popular / popular.sum()


def _decayed_weights(evidence: Evidence, decay: float) -> Tensor:
    """Return the weights of entries, [rows, n], decayed from the newest to the oldest one."""
    place = torch.arange(evidence.item.shape[1], device=evidence.weight.device)
    age = evidence.slots[:, None] - 1 - place
    return evidence.weight * decay ** age.clamp_min(0)


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
