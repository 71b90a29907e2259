"""Stacked recommenders: parameters of several runs with a leading axis of runs.

Knows nothing about training: it evaluates functions of a recommender for every run at once.
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
    """Recommenders of one shape, one for each run."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(recommender, *args)` for every run.

        Args:
            function: A function of one run's recommender and of tensors.
            args: Tensors with a leading axis of runs.
        """
        return call_stacked(self.template, self.state, function, *args)

    def among(self, items: Tensor) -> StackedRecommenders:
        """Return the recommenders with item tables of these items [n] only, renumbered."""
        tables = [name for name in self.state if name in self.template.item_tables]
        few = {name: self.state[name][:, items] for name in tables}
        return StackedRecommenders(self.template, self.state | few)

    def quantized(self) -> StackedRecommenders:
        """Return the recommenders in float64, with parameters on the fixed-point grid.

        Stored sums are left empty: they are computed again from the rounded parameters.
        """
        state = {
            name: quantize(value, PARAMETER_BITS) if value.is_floating_point() else value
            for name, value in self.state.items()
        }
        if "stored_sums" in state:
            state["stored_sums"] = state["stored_sums"][..., :0]
        for name in ("inner_lr", "rating_center", "rating_spread"):  # units, not summed
            state[name] = self.state[name].double()
        return StackedRecommenders(_in_double(self.template), state)


@lru_cache(maxsize=2)
def _in_double(template: Recommender) -> Recommender:
    """Return a template in float64; its own parameters are not used."""
    return copy.deepcopy(template).double()
