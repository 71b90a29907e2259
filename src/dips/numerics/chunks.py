"""Split rows into chunks, where every row has an intermediate as wide as the item catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T")
MAX_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Most elements in the widest intermediate of one chunk, by device type."""
CPU_CACHE_ELEMENTS = 1 << 18
"""Elements that stay in a CPU's caches from one operation to the next."""
MIN_CPU_ROWS = 16
"""Fewest rows of a CPU chunk: with fewer, reading the item table dominates."""


def rows_per_chunk(max_elements: int, breadth: int, device: torch.device) -> int:
    """Return how many rows to compute at once.

    Args:
        max_elements: Most elements in the widest intermediate.
        breadth: Elements in the widest intermediate of one row.
        device: Where the rows are computed. On a CPU the intermediate also fits its caches.

    Returns:
        A number of rows, at least 1.
    """
    fits = max(1, max_elements // breadth)
    if device.type != "cpu":
        return fits
    return min(fits, max(MIN_CPU_ROWS, CPU_CACHE_ELEMENTS // breadth))


def split_into_chunks(tensors: T, breadth: int, axis: int = 0) -> Iterator[T]:
    """Yield chunks of all tensors along one axis, so that intermediates stay small.

    Args:
        tensors: A pytree of tensors of equal length along `axis`.
        breadth: Elements in the widest intermediate of one row.
        axis: The axis of rows.

    Yields:
        Pytrees of views, in order. Without rows there is one empty chunk.
    """
    first = tree_leaves(tensors)[0]
    rows = first.shape[axis]
    size = rows_per_chunk(MAX_ELEMENTS[first.device.type], breadth, first.device)
    for low in range(0, max(1, rows), size):
        width = min(size, rows - low)
        chunk: T = tree_map(lambda leaf, at=low, n=width: leaf.narrow(axis, at, n), tensors)
        yield chunk
