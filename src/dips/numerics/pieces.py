"""How many rows to compute at once, where each of them is as wide as all items."""

from __future__ import annotations

import torch

NEAR = 1 << 18
"""So many numbers stay in a CPU's caches from one operation to the next."""
FEW = 16
"""With fewer rows a CPU reads the table of all items too often."""


def rows_at_once(most: int, breadth: int, device: torch.device) -> int:
    """Rows of this breadth: at most so many numbers; on a CPU, what stays in its caches."""
    fits = max(1, most // breadth)
    return min(fits, max(FEW, NEAR // breadth)) if device.type == "cpu" else fits
