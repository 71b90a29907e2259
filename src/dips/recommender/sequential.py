"""The base class of recommenders that read items in order."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dips.numerics.descent import Rounding, identity
from dips.recommender.base import Evidence, Recommender


class Sequential(Recommender, ABC):
    """A recommender that reads the items of a sketch in order, oldest first, without descent.

    `read` runs over the K entries of a sketch. Training on whole histories uses `states`, which
    returns the states after all prefixes in one pass.
    """

    @abstractmethod
    def read(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return the state after a sketch, [rows, dim]; entries of weight 0 are skipped."""

    @abstractmethod
    def states(self, items: Tensor, dropout: Rounding = identity) -> Tensor:
        """Return the states after 0, 1, ..., n items, [rows, n + 1, dim].

        Args:
            items: Items in order, [rows, n].
            dropout: Applied to inputs and states in training.
        """

    def states_after(
        self, items: Tensor, owner: Tensor, step: Tensor, dropout: Rounding = identity
    ) -> Tensor:
        """Return what `read` returns for some prefixes, [prefixes, wide].

        Args:
            items: Items in order, [rows, n].
            owner: Row of each prefix, [prefixes].
            step: Number of items in each prefix, [prefixes].
            dropout: Applied to inputs and states in training.
        """
        state = self.states(items, dropout)[owner, step]
        age = step[:, None] - 1 - torch.arange(items.shape[1], device=step.device)
        known, age = (age >= 0).to(state.dtype), age.clamp_min(0).to(state.dtype)
        return self.append_repeat_scores(state, items[owner], known, age)

    def append_repeat_scores(
        self,
        state: Tensor,
        item: Tensor,
        weight: Tensor,
        age: Tensor,
        rounding: Rounding = identity,
    ) -> Tensor:
        """Return the state with repeat scores of the entries [rows, n]; none by default."""
        del item, weight, age, rounding
        return state
