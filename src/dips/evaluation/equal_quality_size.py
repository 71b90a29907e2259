"""Interpolate the sketch size at which a policy reaches a given quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class EqualQualitySize:
    """Sketch size at which a policy reaches a quality."""

    size: float
    """The size; if there is a `bound`, the largest or smallest size that was tried."""
    bound: str = ""
    """"above" if the largest size is too small, "below" if the smallest is better; else ""."""

    @property
    def exact(self) -> bool:
        """Whether the size lies within the sizes that were tried."""
        return not self.bound

    def ratio(self, size: float) -> float:
        """Return this size divided by another size."""
        return self.size / size

    def __str__(self) -> str:
        sign = {"": "", "above": "more than ", "below": "less than "}[self.bound]
        return f"{sign}{self.size:.3g}"


def equal_quality_size(
    sizes: Sequence[float],
    quality: Sequence[float],
    target: float,
    *,
    lower_is_better: bool = False,
) -> EqualQualitySize:
    """Return the smallest size that reaches a target quality.

    Quality is interpolated linearly in the logarithm of the size.

    Args:
        sizes: Sizes that were tried, above 0.
        quality: Quality at each size.
        target: The quality to reach.
        lower_is_better: Whether a lower quality value is better, as for RMSE.

    Raises:
        ValueError: If there are no sizes, or not as many qualities.

    >>> equal_quality_size([2, 4, 8], [0.1, 0.2, 0.3], 0.25).size  # doctest: +ELLIPSIS
    5.65...
    """
    if len(sizes) != len(quality) or not sizes:
        raise ValueError(
            f"{len(sizes)} sizes and {len(quality)} qualities: give one quality per size"
        )
    if min(sizes) <= 0:
        raise ValueError(f"sizes {list(sizes)}: sizes must be above 0")
    order = np.argsort(sizes)
    size = np.asarray(sizes, dtype=np.float64)[order]
    sign = -1.0 if lower_is_better else 1.0
    good = sign * np.asarray(quality, dtype=np.float64)[order]
    goal = sign * target
    reached = np.flatnonzero(good >= goal)
    if len(reached) == 0:
        return EqualQualitySize(float(size[-1]), "above")
    first = int(reached[0])
    if first == 0:
        return EqualQualitySize(float(size[0]), "below" if good[0] > goal else "")
    share = (goal - good[first - 1]) / (good[first] - good[first - 1])
    low, high = np.log(size[first - 1 : first + 1])
    return EqualQualitySize(float(np.exp(low + share * (high - low))))
