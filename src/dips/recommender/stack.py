"""Several recommenders of one shape side by side: a leading axis of runs over all parameters.

Knows nothing of training: it evaluates functions of a recommender for every run at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from dips.numerics.exact import PARAMETER_BITS, snap
from dips.numerics.sidebyside import SideBySide, State, each
from dips.recommender.base import Recommender

__all__ = ["Stack", "State"]


class Stack(SideBySide[Recommender]):
    """Recommenders side by side."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(recommender, *args)` for every run; tensors carry a leading axis of runs."""
        return each(self.template, self.state, function, *args)

    def settled(self) -> Stack:
        """The same recommenders as decisions see them: float64, on the grid of DESIGN 1.6."""
        state = {
            name: snap(value, PARAMETER_BITS) if value.is_floating_point() else value
            for name, value in self.state.items()
        }
        state["inner_rate"] = self.state["inner_rate"].double()
        return Stack(copy.deepcopy(self.template).double(), state)
