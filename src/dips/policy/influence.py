"""Keep the candidates that represent all candidates best: a greedy bilevel coreset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.numerics.fixed_point import SCORE_BITS, quantize
from dips.policy.base import Policy
from dips.policy.hardest import check_half_life, decay_factors
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
@dataclass(frozen=True)
class Influence(Policy):
    """Select K candidates greedily by influence functions (the paper's Influence, Eq. 11).

    From the empty set, add the candidate whose weight lowers the loss of all candidates most. The
    user is adapted again after each addition.

    Args:
        size: Number of candidates to select (K).
        damping: Added to the diagonal of the Hessian, which is singular without it.
        half_life: Steps after which a reduction of the loss counts half; None: no decay.
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
        """Return K for the first candidate added, then K - 1, ...; 0 for the rest."""
        present = candidates.present
        decay = decay_factors(candidates, self.half_life)
        chosen = torch.zeros_like(decay)
        scores = torch.zeros_like(decay)
        for step in range(min(self.size, present.shape[1] - 1)):
            gain = -signals.read(chosen).influences(self.damping)
            gain = torch.where(gain > 0, gain * decay, gain / decay)  # age lowers either sign
            best = first_largest(gain, present & (chosen == 0))
            chosen = chosen + best
            scores = scores + best * (self.size - step)
        return scores


def first_largest(values: Tensor, allowed: Tensor) -> Tensor:
    """Return one-hot rows [rows, n] at the largest allowed value; the last slot wins ties.

    A row without allowed values is 0.
    """
    quantized = quantize(values, SCORE_BITS).masked_fill(~allowed, -float("inf"))
    slot = values.shape[1] - 1 - quantized.flip(1).argmax(1, keepdim=True)
    return (values.new_zeros(values.shape).scatter(1, slot, 1.0)) * allowed
