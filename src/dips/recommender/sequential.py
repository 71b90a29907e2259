"""Recommenders that read in order: one pass over a history gives the state after every prefix."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dips.numerics.descent import Rounding, keep
from dips.recommender.base import Evidence, Recommender


class Sequential(Recommender, ABC):
    """A recommender that reads the items of a sketch one after the other, oldest first.

    Nothing descends: `read` runs over the K entries, and learning from whole histories asks for
    the `states` after all their prefixes at once.
    """

    @abstractmethod
    def read(self, evidence: Evidence, rounding: Rounding = keep) -> Tensor:
        """[rows, dim] the state after a sketch; an entry of weight 0 is not there."""

    @abstractmethod
    def states(self, items: Tensor, drop: Rounding = keep) -> Tensor:
        """[rows, n + 1, dim] the states after 0, 1, ..., n of the items [rows, n].

        `drop` leaves out some of the units as it learns.
        """

    def after(self, items: Tensor, owner: Tensor, step: Tensor, drop: Rounding = keep) -> Tensor:
        """[prefixes, wide] what `read` gives for some prefixes: whose, and how many items."""
        state = self.states(items, drop)[owner, step]
        age = step[:, None] - 1 - torch.arange(items.shape[1], device=step.device)
        known, age = (age >= 0).to(state.dtype), age.clamp_min(0).to(state.dtype)
        return self.remember(state, items[owner], known, age)

    def remember(
        self, state: Tensor, item: Tensor, weight: Tensor, age: Tensor, rounding: Rounding = keep
    ) -> Tensor:
        """What is known of the entries [rows, n] besides the state: nothing, unless overridden."""
        del item, weight, age, rounding
        return state
