"""Standard deviation over folds without the variation that all policies share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

C = TypeVar("C", bound=Hashable)


def within_splits(values: Mapping[C, Mapping[int, float]]) -> dict[C, float]:
    """Return the within-fold standard deviation of each cell.

    The mean of each fold over all cells is subtracted first, as some folds have easier users
    (Cousineau 2005, with the correction of Morey 2008).

    Args:
        values: A metric by cell and by fold.

    Returns:
        Standard deviations by cell; empty for a single fold or cell, or if a cell lacks a fold.
    """
    folds = sorted({fold for own in values.values() for fold in own})
    whole = all(len(own) == len(folds) for own in values.values())
    if len(folds) < 2 or len(values) < 2 or not whole:
        return {}
    table = np.array([[own[fold] for fold in folds] for own in values.values()])  # [cells, folds]
    centred = table - table.mean(0) + table.mean()
    spread = centred.std(1, ddof=1) * (len(table) / (len(table) - 1)) ** 0.5
    return dict(zip(values, spread.tolist(), strict=True))
