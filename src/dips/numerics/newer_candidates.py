"""How much weight the newer candidates have: all of them, or those of the same item.

Weights on the grid of decisions, so sums are exact in any order, and both forms leave the same
bits: pairs for few candidates, sorting for many.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.numerics import exact

WIDE = 32
"""From so many candidates on, sorting costs less than looking at all pairs."""


def newer_weight(position: Tensor, weight: Tensor) -> Tensor:
    """[rows, n] the weights of the candidates at later positions, summed."""
    weight = exact.parameter(weight)
    if position.shape[1] <= WIDE:
        return by_pairs(position[:, None, :] > position[:, :, None], weight)
    return by_sorting(torch.zeros_like(position), position, weight)


def newer_twins(position: Tensor, item: Tensor, weight: Tensor) -> Tensor:
    """[rows, n] the same over candidates of the same item."""
    weight = exact.parameter(weight)
    if position.shape[1] <= WIDE:
        later = position[:, None, :] > position[:, :, None]
        return by_pairs(later & (item[:, None, :] == item[:, :, None]), weight)
    return by_sorting(item, position, weight)


def by_pairs(counts: Tensor, weight: Tensor) -> Tensor:
    """[rows, n] sums of the weights [rows, n] that count [rows, n, n] for each."""
    return (counts.double() @ weight[:, :, None])[..., 0]


def by_sorting(group: Tensor, position: Tensor, weight: Tensor) -> Tensor:
    """[rows, n] the weights at later positions of the same group, summed."""
    order = position.argsort(dim=1, stable=True)
    order = order.gather(1, group.gather(1, order).argsort(dim=1, stable=True))
    group, position = group.gather(1, order), position.gather(1, order)
    until = weight.gather(1, order).cumsum(1)  # the own weight included
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    total = until.gather(1, _last(place, group))
    own = until.gather(1, _last(place, group, position))
    return torch.zeros_like(until).scatter(1, order, total - own)


def _last(place: Tensor, *fields: Tensor) -> Tensor:
    """[rows, n] the last place of those in a row that are alike in these fields, sorted."""
    ends = torch.zeros_like(place[:, :-1], dtype=torch.bool)
    for field in fields:
        ends = ends | (field[:, 1:] != field[:, :-1])
    ends = torch.cat([ends, torch.ones_like(place[:, :1], dtype=torch.bool)], 1)
    far = torch.where(ends, place, place.shape[1])
    return far.flip(1).cummin(1).values.flip(1)
