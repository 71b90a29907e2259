"""Selectors: from scores to the K candidates that stay. A high score means keep.

Ties go to the newer interaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dips.kernels.layout import SCORE_LIMIT
from dips.numerics.fixed_point import SCORE_BITS, quantize
from dips.numerics.hashing import uniform
from dips.numerics.topk import project_top_k, sample_by_inclusion
from dips.sketch.records import Candidates

SELECTION = 0x5E1EC7
"""Separates the random numbers of a selection from a policy's, which use the same key."""


class Selector(ABC):
    """Selects the candidates that stay in the sketch."""

    @abstractmethod
    def choose(self, scores: Tensor, candidates: Candidates, size: int) -> Tensor:
        """Return the slots to keep, present ones first and by position.

        Args:
            scores: Score of each candidate, [users, candidates].
            candidates: The candidates.
            size: Size of the new sketch.

        Returns:
            [users, size].
        """


@final
@dataclass(frozen=True)
class Greedy(Selector):
    """Keep the K highest scores."""

    def choose(self, scores: Tensor, candidates: Candidates, size: int) -> Tensor:
        """Return the slots of the K highest scores; newer first among equals."""
        quantized = _quantize_scores(scores).masked_fill(~candidates.present, -torch.inf)
        order = quantized.flip(1).sort(dim=1, descending=True, stable=True).indices
        return _by_position(quantized.shape[1] - 1 - order[:, :size], candidates)


@final
@dataclass(frozen=True)
class Sampled(Selector):
    """Sample the selection: drop one by a softmax (Eq. 4), or keep K by a projection (Eq. 6).

    Args:
        temperature: Scores are divided by it.
    """

    temperature: float = 1.0

    def choose(self, scores: Tensor, candidates: Candidates, size: int) -> Tensor:
        """Return sampled slots; random numbers are functions of user key, time and position."""
        quantized = _quantize_scores(scores / self.temperature)
        if quantized.shape[1] == size + 1:
            removal = (gumbel_noise(candidates) - quantized).masked_fill(
                ~candidates.present, -torch.inf
            )
            return Greedy().choose(_all_but_largest(removal), candidates, size)
        weights = project_top_k(quantized, size, candidates.present)
        draw = uniform(candidates.key, SELECTION, candidates.seen)
        kept = sample_by_inclusion(weights, draw)
        return Greedy().choose(kept.double(), candidates, size)


def gumbel_noise(candidates: Candidates) -> Tensor:
    """Return Gumbel noise, [users, candidates]: `Sampled` drops the largest noise minus score."""
    number = uniform(
        candidates.key[:, None], SELECTION, candidates.seen[:, None], candidates.position
    )
    return -(-number.clamp_min(2.0**-60).log()).log()


def make_selector(selection: str) -> Selector:
    """Return the selector with this name: greedy or sampled."""
    return Greedy() if selection == "greedy" else Sampled()


def _quantize_scores(scores: Tensor) -> Tensor:
    """Return finite scores on the fixed-point grid, as they are compared."""
    return quantize(scores, SCORE_BITS).clamp(-SCORE_LIMIT, SCORE_LIMIT)


def _all_but_largest(removal: Tensor) -> Tensor:
    """Return 1 for every element but the largest of each row, else 0."""
    dropped = removal.argmax(1, keepdim=True)
    return torch.ones_like(removal).scatter(1, dropped, 0.0)


def _by_position(slots: Tensor, candidates: Candidates) -> Tensor:
    """Return slots sorted by position; empty ones last."""
    width = candidates.position.shape[1]
    empty = ~candidates.present.gather(1, slots)
    ranked = (slots + width * empty).sort(dim=1).values
    return torch.where(ranked >= width, ranked - width, ranked)
