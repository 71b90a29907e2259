"""Several recommenders of one shape side by side: a leading axis of runs over all parameters.

Knows nothing of training: it evaluates functions of a recommender for every run at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch import Tensor

from dips.numerics.fixed_point import PARAMETER_BITS, quantize
from dips.numerics.stacking import StackedModules, StateDict, call_stacked
from dips.recommender.base import Recommender

__all__ = ["StackedRecommenders", "StateDict"]


class StackedRecommenders(StackedModules[Recommender]):
    """Recommenders side by side."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(recommender, *args)` for every run; tensors carry a leading axis of runs."""
        return call_stacked(self.template, self.state, function, *args)

    def among(self, items: Tensor) -> StackedRecommenders:
        """The same recommenders with tables of these items [n] alone, numbered anew."""
        tables = [name for name in self.state if name in self.template.by_item]
        few = {name: self.state[name][:, items] for name in tables}
        return StackedRecommenders(self.template, self.state | few)

    def quantized(self) -> StackedRecommenders:
        """The same recommenders as decisions see them: float64, on the grid of DESIGN 1.6."""
        state = {
            name: quantize(value, PARAMETER_BITS) if value.is_floating_point() else value
            for name, value in self.state.items()
        }
        state["inner_lr"] = self.state["inner_lr"].double()
        return StackedRecommenders(_in_double(self.template), state)


@lru_cache(maxsize=2)
def _in_double(template: Recommender) -> Recommender:
    """A template in float64; its own parameters are never asked for."""
    return copy.deepcopy(template).double()
