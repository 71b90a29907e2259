"""Random priorities, and the newest before them."""

from __future__ import annotations

import torch

from dips.policy.reservoir import Mix, Reservoir
from dips.sketch.signals import Signals
from dips.testing import random_candidates


def test_reservoir_gives_each_interaction_one_priority() -> None:
    first, later = (random_candidates(seed=seed)[1] for seed in (0, 1))
    position = torch.arange(5).expand(6, -1)
    one = first._replace(position=position)
    other = later._replace(position=position.flip(1), key=first.key, seen=later.seen + 9)
    priority = Reservoir().score(one, Signals())
    assert torch.equal(priority, Reservoir().score(other, Signals()).flip(1))
    assert bool(((priority >= 0) & (priority < 1)).all())


def test_mix_puts_the_newest_first() -> None:
    candidates = random_candidates(size=3, period=2, seed=4)[1]
    scores = Mix(2).score(candidates, Signals())
    priority = Reservoir().score(candidates, Signals())
    newest = candidates.age < 2
    assert bool((scores[newest] >= 1).all())
    assert torch.equal(scores[~newest], priority[~newest])
