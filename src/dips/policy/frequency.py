"""Keep the items that the user repeats most."""

from __future__ import annotations

from typing import final

from torch import Tensor

from dips.policy.base import Policy
from dips.policy.recency import has_newer_duplicate
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
class Frequent(Policy):
    """Keep the K items with the highest repeat counts, each once; ties go to the newer item."""

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return repeat counts; only the newest interaction with an item counts."""
        del signals
        seen = candidates.seen[:, None].double()
        recency = 1 - candidates.age / (seen + 1)
        return candidates.repeats + recency / 2 - has_newer_duplicate(candidates) * (seen + 1)
