"""The newest entries, then predicted scores."""

from __future__ import annotations

import torch

from dips.policy.registry import make_policy
from dips.sketch.records import Candidates
from dips.sketch.selection import Greedy
from dips.sketch.signals import Signals


def test_last_top_keeps_the_newest_and_the_highest_predicted_scores() -> None:
    """The newest whatever their score; of the others the highest scores, however old."""
    place = torch.tensor([[2, 5, 6, 10, 11]])
    zero, ones = torch.zeros_like(place), torch.ones_like(place)
    seen = torch.tensor([12])
    candidates = Candidates(place, place, ones.float(), zero, ones, zero, seen, seen)

    predicted = torch.tensor([[7.0, -2.0, 3.0, -90.0, -1e6]]).double()
    signals = Signals.of({"predicted_score": predicted})
    for newest, size, kept in ((1, 2, [2, 11]), (1, 3, [2, 6, 11]), (2, 3, [2, 10, 11]),
                               (2, 4, [2, 6, 10, 11])):  # fmt: skip
        scores = make_policy(f"last-top:{newest}", size=size).score(candidates, signals)
        slots = Greedy().choose(scores, candidates, size)
        assert place.gather(1, slots.sort(1).values)[0].tolist() == kept
