"""How many entries another policy needs for the same quality. Pure arithmetic over a few points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class EqualSize:
    """The size at which a policy reaches a quality, as far as its sizes tell."""

    size: float
    """The size; where `bound` is not empty, the end of the sizes that were tried."""
    bound: str = ""
    """'above' where even the largest size is not good enough, 'below' where the smallest is
    better already: then the answer lies beyond `size`, and how far nobody knows."""

    @property
    def exact(self) -> bool:
        """Whether it lies among the sizes that were tried."""
        return not self.bound

    def ratio(self, size: float) -> float:
        """How many times as large it is as another size; a bound where it is one."""
        return self.size / size

    def __str__(self) -> str:
        sign = {"": "", "above": "more than ", "below": "less than "}[self.bound]
        return f"{sign}{self.size:.3g}"


def equal_size(
    sizes: Sequence[float],
    quality: Sequence[float],
    target: float,
    *,
    lower_is_better: bool = False,
) -> EqualSize:
    """The smallest size that reaches the target, quality being linear in log size between points.

    >>> equal_size([2, 4, 8], [0.1, 0.2, 0.3], 0.25).size  # doctest: +ELLIPSIS
    5.65...
    """
    if len(sizes) != len(quality) or not sizes:
        raise ValueError(f"{len(sizes)} sizes and {len(quality)} qualities: give as many, and some")
    if min(sizes) <= 0:
        raise ValueError(f"sizes {list(sizes)}: a logarithm needs them above 0")
    order = np.argsort(sizes)
    size = np.asarray(sizes, dtype=np.float64)[order]
    sign = -1.0 if lower_is_better else 1.0
    good = sign * np.asarray(quality, dtype=np.float64)[order]
    goal = sign * target
    reached = np.flatnonzero(good >= goal)
    if len(reached) == 0:
        return EqualSize(float(size[-1]), "above")
    place = int(reached[0])
    if place == 0:
        return EqualSize(float(size[0]), "below" if good[0] > goal else "")
    share = (goal - good[place - 1]) / (good[place] - good[place - 1])
    low, high = np.log(size[place - 1 : place + 1])
    return EqualSize(float(np.exp(low + share * (high - low))))
