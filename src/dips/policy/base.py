"""What a policy is, and what it may ask. Never imports a recommender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor

from dips.errors import ConfigError
from dips.sketch.records import Candidates

SIGNALS = ("loss", "residual", "predicted_score", "embedding", "read")
"""What a policy may ask a recommender: the methods of `Signals`."""


class Reading(Protocol):
    """The recommender after it has read some of the candidates. All tensors are detached."""

    def losses(self) -> Tensor:
        """[users, candidates] loss of each candidate."""

    def influences(self, damping: float) -> Tensor:
        """[users, candidates] effect of a candidate's weight on the loss of all candidates.

        By the influence function: `damping` is added to the Hessian of that loss.
        """


class Signals(Protocol):
    """What the recommender knows about the candidates of a refresh. All tensors are detached."""

    def loss(self) -> Tensor:
        """[users, candidates] loss of each, with the user adapted to the sketch before it."""

    def embedding(self) -> Tensor:
        """[users, candidates, dim] the recommender's vector of each candidate's item."""

    def residual(self) -> Tensor:
        """[users, candidates] derivative of each candidate's loss in its score, sign reversed."""

    def predicted_score(self) -> Tensor:
        """[users, candidates] rating or score that the sketch before predicts, perhaps roughly."""

    def read(self, weights: Tensor) -> Reading:
        """Adapt the user to the candidates with these weights [users, candidates]."""


class NoSignals:
    """There is no recommender: for policies that need none. DecisionInputs is an error."""

    def loss(self) -> Tensor:
        """Refuse."""
        raise ConfigError("this policy asks for losses: roll it out with a recommender")

    def embedding(self) -> Tensor:
        """Refuse."""
        return self.loss()

    def residual(self) -> Tensor:
        """Refuse."""
        return self.loss()

    def predicted_score(self) -> Tensor:
        """Refuse."""
        return self.loss()

    def read(self, weights: Tensor) -> Reading:
        """Refuse."""
        del weights
        self.loss()
        raise AssertionError


class Policy(ABC):
    """Scores candidates: how much is each worth keeping? A pure function of its arguments."""

    required_signals: tuple[str, ...] | bool = ()
    """The signals it uses, True for any: then its sketches change as the recommender does."""
    is_random: bool = False
    """Whether it uses the users' keys: then training draws its sketches anew each epoch."""
    keeps_all: bool = False
    """Whether it keeps everything, whatever the size."""

    @abstractmethod
    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """[users, candidates] scores; high means keep. Values in empty slots are ignored."""


def signals_of(policy: Policy) -> tuple[str, ...]:
    """The names of the signals that a policy uses."""
    if isinstance(policy.required_signals, bool):
        return SIGNALS if policy.required_signals else ()
    unknown = [name for name in policy.required_signals if name not in SIGNALS]
    if unknown or isinstance(policy.required_signals, str):
        known = ", ".join(SIGNALS)
        raise ConfigError(
            f"{type(policy).__name__}.asks = {policy.required_signals!r}: a tuple of {known}"
        )
    return policy.required_signals
