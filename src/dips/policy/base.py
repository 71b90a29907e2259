"""What a policy is, and what it may ask. Never imports a recommender."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from dips.errors import ConfigError
from dips.sketch.records import Candidates
from dips.sketch.signals import SIGNALS, Signals


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
