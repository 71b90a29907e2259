"""Embeddings of several codes at once: the sum of their rows (an embedding bag)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def sum_rows(table: Tensor, codes: Tensor) -> Tensor:
    """Return sums of embedding rows, as `nn.EmbeddingBag` does with `mode="sum"`.

    A sum and not a mean: a sum of fixed-point values is exact in any order.

    Args:
        table: [n, dim] embedding rows.
        codes: [..., k] row indices; -1 is padding.

    Returns:
        [..., dim] sums of the rows that the codes name.

    >>> sum_rows(torch.tensor([[1.0], [10.0]]), torch.tensor([[0, 1], [1, -1], [-1, -1]]))[:, 0]
    tensor([11., 10.,  0.])
    """
    rows = nn.functional.embedding(codes.clamp_min(0), table)
    return torch.where(codes[..., None] >= 0, rows, 0.0).sum(-2)
