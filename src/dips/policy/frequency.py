"""Keep what the user comes back to."""

from __future__ import annotations

from typing import final

from torch import Tensor

from dips.policy.base import Policy
from dips.policy.recency import repeated_later
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
class Frequent(Policy):
    """Keep the K items met most often while remembered, each once, newer first among equals."""

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """More repeats are better; only the newest interaction with an item stands for it."""
        del signals
        seen = candidates.seen[:, None].double()
        recency = 1 - candidates.age / (seen + 1)
        return candidates.repeats + recency / 2 - repeated_later(candidates) * (seen + 1)
