"""The base class of learned policies that take weights of candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from dips.policy.base import Policy
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


class Network(nn.Module, Policy, ABC):
    """A policy with parameters, differentiable in them and in the weights of candidates.

    A subclass implements `score_weighted` in place of `score`. Dropped candidates can then be
    scored with weight 0, which credit by survival needs.

    Example:
        >>> import torch
        >>> from dips.testing import check_policy
        >>> class Recency(Network):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = torch.nn.Parameter(torch.tensor(1.0))
        ...     def score_weighted(self, candidates, signals, weight):
        ...         return -self.slope * candidates.age.double()
        >>> check_policy(Recency)
    """

    @abstractmethod
    def score_weighted(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Return the score of each candidate when candidates have weights.

        Args:
            candidates: The sketch and the new interactions of each user.
            signals: What the recommender knows about the candidates.
            weight: Weights of the candidates before the refresh (z_hat in the paper), [users,
                candidates]: 1 for present candidates. A candidate of weight 0 (a dropped
                candidate) has a score, but no effect on the scores of others.

        Returns:
            [users, candidates].
        """

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return scores when every present candidate has weight 1, every empty slot weight 0."""
        return self.score_weighted(candidates, signals, candidates.present.double())
