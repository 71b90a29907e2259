"""How many rows to compute at once, where each of them is as wide as all items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T")
PIECE = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Most numbers in the widest intermediate over all items: more predictions go piece by piece."""

NEAR = 1 << 18
"""So many numbers stay in a CPU's caches from one operation to the next."""
FEW = 16
"""With fewer rows a CPU reads the table of all items too often."""


def rows_at_once(most: int, breadth: int, device: torch.device) -> int:
    """Rows of this breadth: at most so many numbers; on a CPU, what stays in its caches."""
    fits = max(1, most // breadth)
    return min(fits, max(FEW, NEAR // breadth)) if device.type == "cpu" else fits


def pieces(tensors: T, breadth: int, axis: int = 0) -> Iterator[T]:
    """Tensors cut along an axis, alike, so that rows of this breadth stay small."""
    first = tree_leaves(tensors)[0]
    rows = first.shape[axis]
    size = rows_at_once(PIECE[first.device.type], breadth, first.device)
    for low in range(0, max(1, rows), size):
        width = min(size, rows - low)
        piece: T = tree_map(lambda leaf, at=low, n=width: leaf.narrow(axis, at, n), tensors)
        yield piece
