"""When a sketch is refreshed: every step, every tau steps, or after given periods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from dips.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """Refreshes after these periods, cyclically. The first K interactions are all kept.

    Args:
        periods: Numbers of new interactions between refreshes.

    Raises:
        ConfigError: If a period is below 1, or there is none.

    Example:
        >>> list(Schedule((3, 5)).refreshes(size=2, until=16))
        [(5, 3), (10, 5), (13, 3)]
    """

    periods: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if not self.periods or min(self.periods) < 1:
            raise ConfigError(f"periods {list(self.periods)}: each must be at least 1")

    def refreshes(self, size: int, until: int) -> Iterator[tuple[int, int]]:
        """Yield (interactions seen, number of new ones) at each refresh.

        Args:
            size: Size of the sketch (K).
            until: Last number of interactions at which a refresh may happen.
        """
        seen = size
        for period in cycle(self.periods):
            seen += period
            if seen > until:
                return
            yield seen, period

    def due(self, size: int, seen: Tensor) -> Tensor:
        """Return which users are refreshed now, bool in the shape of `seen`.

        Args:
            size: Size of the sketch (K).
            seen: Number of interactions of each user so far.
        """
        marks = seen.new_tensor(self.periods).cumsum(0)
        past = seen - size
        # The periods repeat every marks[-1] interactions: this maps `past` to 1, ..., marks[-1].
        return (past > 0) & (((past - 1) % marks[-1] + 1)[..., None] == marks).any(-1)

    @property
    def longest(self) -> int:
        """The largest number of interactions that wait for a refresh."""
        return max(self.periods)
