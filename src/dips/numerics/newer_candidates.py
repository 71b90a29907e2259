"""Sums of the weights of newer candidates: of all, or of those of the same item.

Weights are fixed-point values, so sums are exact in any order. Both implementations therefore
give the same bits: all pairs for few candidates, sorting for many.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.numerics import fixed_point

MAX_PAIRWISE = 32
"""Most candidates for which comparing all pairs costs less than sorting."""


def newer_weight(position: Tensor, weight: Tensor) -> Tensor:
    """Return, for each candidate, the sum of the weights of newer candidates.

    Args:
        position: [rows, n] stream positions; newer is larger.
        weight: [rows, n] candidate weights, quantized here as parameters.

    Returns:
        [rows, n] float64, differentiable in `weight`.
    """
    weight = fixed_point.quantize_parameter(weight)
    if position.shape[1] <= MAX_PAIRWISE:
        return sum_pairwise(position[:, None, :] > position[:, :, None], weight)
    return sum_by_sorting(torch.zeros_like(position), position, weight)


def newer_duplicate_weight(position: Tensor, item: Tensor, weight: Tensor) -> Tensor:
    """Return, for each candidate, the sum of the weights of newer candidates of the same item.

    Args:
        position: [rows, n] stream positions; newer is larger.
        item: [rows, n] item codes.
        weight: [rows, n] candidate weights, quantized here as parameters.

    Returns:
        [rows, n] float64, differentiable in `weight`.
    """
    weight = fixed_point.quantize_parameter(weight)
    if position.shape[1] <= MAX_PAIRWISE:
        newer = position[:, None, :] > position[:, :, None]
        return sum_pairwise(newer & (item[:, None, :] == item[:, :, None]), weight)
    return sum_by_sorting(item, position, weight)


def sum_pairwise(counted: Tensor, weight: Tensor) -> Tensor:
    """Return [rows, n] sums of `weight` [rows, n] over the pairs in `counted` [rows, n, n]."""
    return (counted.double() @ weight[:, :, None])[..., 0]


def sum_by_sorting(group: Tensor, position: Tensor, weight: Tensor) -> Tensor:
    """Return [rows, n] sums of the weights at later positions of the same group [rows, n]."""
    order = position.argsort(dim=1, stable=True)
    order = order.gather(1, group.gather(1, order).argsort(dim=1, stable=True))
    group, position = group.gather(1, order), position.gather(1, order)
    cumulative = weight.gather(1, order).cumsum(1)
    index = torch.arange(order.shape[1], device=order.device).expand_as(order)
    of_group = cumulative.gather(1, _last_of_block(index, group))
    until_here = cumulative.gather(1, _last_of_block(index, group, position))
    return torch.zeros_like(cumulative).scatter(1, order, of_group - until_here)


def _last_of_block(index: Tensor, *fields: Tensor) -> Tensor:
    """Return [rows, n] the last index of each block of equal values in sorted fields."""
    ends = torch.zeros_like(index[:, :-1], dtype=torch.bool)
    for field in fields:
        ends = ends | (field[:, 1:] != field[:, :-1])
    ends = torch.cat([ends, torch.ones_like(index[:, :1], dtype=torch.bool)], 1)
    candidates = torch.where(ends, index, index.shape[1])
    return candidates.flip(1).cummin(1).values.flip(1)
