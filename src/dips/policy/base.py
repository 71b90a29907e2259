"""The base class of policies. A policy never imports a recommender; it reads `Signals`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from dips.errors import ConfigError
from dips.sketch.records import Candidates
from dips.sketch.signals import SIGNALS, Signals


class Policy(ABC):
    """A rule or a network that scores candidates: the highest scores stay in the sketch.

    A subclass implements `score`. It must be a pure function of its arguments. A policy that is
    also a `torch.nn.Module` with parameters is trained together with the recommender.

    Example:
        >>> import torch
        >>> from dips.testing import check_policy
        >>> class HighestRating(Policy):
        ...     def score(self, candidates, signals):
        ...         return candidates.rating.double()
        >>> check_policy(HighestRating)
    """

    required_signals: tuple[str, ...] | bool = ()
    """Names of the signals that it reads; True for any. Its sketches then change in training."""
    is_random: bool = False
    """Whether scores depend on `candidates.key`. Training then uses new keys each epoch."""
    keeps_all: bool = False
    """Whether it keeps the whole history, whatever the size of the sketch."""

    @abstractmethod
    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return the score of each candidate: a high score means keep.

        Args:
            candidates: The sketch and the new interactions of each user.
            signals: What the recommender knows about the candidates.

        Returns:
            [users, candidates], floating point. Values in empty slots are ignored.
        """


def signals_of(policy: Policy) -> tuple[str, ...]:
    """Return the names of the signals that a policy requires.

    Raises:
        ConfigError: If `required_signals` is not a tuple of names in SIGNALS.
    """
    if isinstance(policy.required_signals, bool):
        return SIGNALS if policy.required_signals else ()
    unknown = [name for name in policy.required_signals if name not in SIGNALS]
    if unknown or isinstance(policy.required_signals, str):
        known = ", ".join(SIGNALS)
        raise ConfigError(
            f"{type(policy).__name__}.required_signals = {policy.required_signals!r}: use a tuple "
            f"of {known}"
        )
    return policy.required_signals
