"""How far splits differ once their common ups and downs are taken away."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

C = TypeVar("C", bound=Hashable)


def within_splits(values: Mapping[C, Mapping[int, float]]) -> dict[C, float]:
    """By cell, the standard deviation over splits around what each split gives all cells.

    `values` are by cell and by seed. A split with easy users lifts every policy alike; what is left
    tells policies apart (Cousineau 2005, with the correction of Morey 2008). Empty where there is
    a single split or cell, or where cells lack a split.
    """
    seeds = sorted({seed for own in values.values() for seed in own})
    whole = all(len(own) == len(seeds) for own in values.values())
    if len(seeds) < 2 or len(values) < 2 or not whole:
        return {}
    table = np.array([[own[seed] for seed in seeds] for own in values.values()])  # [cells, seeds]
    own = table - table.mean(0) + table.mean()
    spread = own.std(1, ddof=1) * (len(table) / (len(table) - 1)) ** 0.5
    return dict(zip(values, spread.tolist(), strict=True))
