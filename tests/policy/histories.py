"""Histories as strings of letters, for tests of rules."""

from __future__ import annotations

from itertools import pairwise

import torch

from dips.policy.base import Policy
from dips.sketch.records import Sketch, empty
from dips.sketch.selection import Greedy
from dips.sketch.signals import Signals
from dips.sketch.update import decide

KEY = torch.tensor([11])


def kept_items(policy: Policy, items: str, size: int, period: int = 1) -> str:
    """Return the kept items of a history given as letters, oldest first."""
    sketch = empty(1, size)
    first = min(size, len(items))
    bounds = [0, first, *range(first + period, len(items) + 1, period)]
    for start, end in pairwise(bounds):
        place = torch.arange(start, end)[None]
        item = torch.tensor([[ord(letter) for letter in items[start:end]]])
        arrivals = Sketch(place, item, place.float(), place * 60, place * 0 + 1, place * 0)
        sketch, _ = decide(
            sketch,
            arrivals,
            torch.tensor([end]),
            KEY,
            lambda _, candidates: policy.score(candidates, Signals()),
            Greedy(),
        )
    return "".join(chr(item) for item in sketch.item[sketch.present].tolist())
