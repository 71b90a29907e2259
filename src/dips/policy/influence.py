"""Keep what represents all candidates best: a greedy bilevel coreset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.numerics.fixed_point import SCORE_BITS, quantize
from dips.policy.base import Policy
from dips.policy.hardest import check_half_life, recency_decay
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
@dataclass(frozen=True)
class Influence(Policy):
    """From the empty set, K times add the candidate whose weight would lower the loss of all most.

    The user is refitted after each addition (the paper's Influence; DESIGN 3). `damping` is added
    to the Hessian, which alone is singular. With a half-life, older candidates gain less.
    """

    size: int
    damping: float = 1.0
    half_life: float | None = None

    required_signals = ("read",)

    def __post_init__(self) -> None:
        check_half_life("influence", self.half_life)
        if not self.damping > 0:
            raise ConfigError(f"damping {self.damping}: must be positive")

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """The earlier a candidate is added the higher it scores; the rest keep score 0."""
        present = candidates.present
        fade = recency_decay(candidates, self.half_life)
        chosen = torch.zeros_like(fade)
        scores = torch.zeros_like(fade)
        for turn in range(min(self.size, present.shape[1] - 1)):
            gain = -signals.read(chosen).influences(self.damping)
            gain = torch.where(gain > 0, gain * fade, gain / fade)  # age lowers either
            best = first_largest(gain, present & (chosen == 0))
            chosen = chosen + best
            scores = scores + best * (self.size - turn)
        return scores


def first_largest(values: Tensor, allowed: Tensor) -> Tensor:
    """[rows, n] one-hot of the largest allowed value, the last slot among equals; 0 if none is."""
    quantized = quantize(values, SCORE_BITS).masked_fill(~allowed, -float("inf"))
    slot = values.shape[1] - 1 - quantized.flip(1).argmax(1, keepdim=True)
    return (values.new_zeros(values.shape).scatter(1, slot, 1.0)) * allowed
