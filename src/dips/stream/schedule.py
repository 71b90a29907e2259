"""When a sketch is refreshed: every step, every tau steps, or after given periods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from dips.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Refresh after these periods, over and over; the first K interactions are all kept.

    >>> list(Schedule((3, 5)).refreshes(size=2, until=16))
    [(5, 3), (10, 5), (13, 3)]
    """

    periods: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if not self.periods or min(self.periods) < 1:
            raise ConfigError(f"periods {list(self.periods)}: each must be at least 1")

    def refreshes(self, size: int, until: int) -> Iterator[tuple[int, int]]:
        """(interactions seen, how many of them are new) at each refresh up to `until` seen."""
        seen = size
        for period in cycle(self.periods):
            seen += period
            if seen > until:
                return
            yield seen, period

    def due(self, size: int, seen: Tensor) -> Tensor:
        """Which users, who have seen so much, are to be refreshed now: as `refreshes` says."""
        marks = torch.cumsum(torch.tensor(self.periods, device=seen.device), 0)
        past = seen - size
        return (past > 0) & torch.isin((past - 1) % marks[-1] + 1, marks)

    @property
    def longest(self) -> int:
        """The most interactions that wait for a refresh."""
        return max(self.periods)
