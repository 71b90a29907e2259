"""Standard deviation over splits without the variation that all policies share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

C = TypeVar("C", bound=Hashable)


def within_splits(values: Mapping[C, Mapping[int, float]]) -> dict[C, float]:
    """Return the within-split standard deviation of each cell.

    The mean of each split over all cells is subtracted first, as some splits have easier users
    (Cousineau 2005, with the correction of Morey 2008).

    Args:
        values: A metric by cell and by seed.

    Returns:
        Standard deviations by cell; empty for a single split or cell, or if a cell lacks a split.
    """
    seeds = sorted({seed for own in values.values() for seed in own})
    whole = all(len(own) == len(seeds) for own in values.values())
    if len(seeds) < 2 or len(values) < 2 or not whole:
        return {}
    table = np.array([[own[seed] for seed in seeds] for own in values.values()])  # [cells, seeds]
    centred = table - table.mean(0) + table.mean()
    spread = centred.std(1, ddof=1) * (len(table) / (len(table) - 1)) ** 0.5
    return dict(zip(values, spread.tolist(), strict=True))
