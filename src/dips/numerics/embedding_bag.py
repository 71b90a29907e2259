"""Sums of rows by ragged lists of codes: an embedding for what has several names at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def sum_rows(table: Tensor, codes: Tensor) -> Tensor:
    """[..., dim] sums of the rows of `table` [n, dim] that `codes` [..., k] name; -1 names none.

    A sum, not a mean: of numbers on a grid it is exact in any order.

    >>> sum_rows(torch.tensor([[1.0], [10.0]]), torch.tensor([[0, 1], [1, -1], [-1, -1]]))[:, 0]
    tensor([11., 10.,  0.])
    """
    rows = nn.functional.embedding(codes.clamp_min(0), table)
    return torch.where(codes[..., None] >= 0, rows, 0.0).sum(-2)
