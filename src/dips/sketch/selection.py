"""From scores to a choice of K. A high score means keep; ties go to the newer interaction."""

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

CHOICE = 0x5E1EC7
"""Keeps the draws of a choice apart from the lots that a policy draws from the same key."""


class Selector(ABC):
    """Chooses which candidates stay."""

    @abstractmethod
    def choose(self, scores: Tensor, candidates: Candidates, size: int) -> Tensor:
        """[users, size] slots to keep, present ones first and in order of position."""


@final
@dataclass(frozen=True)
class Greedy(Selector):
    """Keep the K highest scores: drop one, or keep the best of a batch."""

    def choose(self, scores: Tensor, candidates: Candidates, size: int) -> Tensor:
        """Sort by score, newer first among equals."""
        quantized = _settle(scores).masked_fill(~candidates.present, -torch.inf)
        order = quantized.flip(1).sort(dim=1, descending=True, stable=True).indices
        return _in_order(quantized.shape[1] - 1 - order[:, :size], candidates)


@final
@dataclass(frozen=True)
class Sampled(Selector):
    """Draw the choice: one to drop by softmax (Eq. 4), K to keep by the projection (Eq. 6)."""

    temperature: float = 1.0

    def choose(self, scores: Tensor, candidates: Candidates, size: int) -> Tensor:
        """Draws are functions of the user's key, the time and the position."""
        quantized = _settle(scores / self.temperature)
        if quantized.shape[1] == size + 1:
            removal = (gumbel_noise(candidates) - quantized).masked_fill(
                ~candidates.present, -torch.inf
            )
            return Greedy().choose(_all_but_largest(removal), candidates, size)
        weights = project_top_k(quantized, size, candidates.present)
        draw = uniform(candidates.key, CHOICE, candidates.seen)
        kept = sample_by_inclusion(weights, draw)
        return Greedy().choose(kept.double(), candidates, size)


def gumbel_noise(candidates: Candidates) -> Tensor:
    """[users, candidates] what `Sampled` adds to minus the scores: the largest sum is dropped."""
    chance = uniform(candidates.key[:, None], CHOICE, candidates.seen[:, None], candidates.position)
    return -(-chance.clamp_min(2.0**-60).log()).log()


def _settle(scores: Tensor) -> Tensor:
    """Scores as they are compared: on the grid, and finite."""
    return quantize(scores, SCORE_BITS).clamp(-SCORE_LIMIT, SCORE_LIMIT)


def _all_but_largest(removal: Tensor) -> Tensor:
    """1 for every entry but the largest of each row."""
    dropped = removal.argmax(1, keepdim=True)
    return torch.ones_like(removal).scatter(1, dropped, 0.0)


def _in_order(slots: Tensor, candidates: Candidates) -> Tensor:
    """Sort chosen slots by position; empty ones last."""
    width = candidates.position.shape[1]
    empty = ~candidates.present.gather(1, slots)
    ranked = (slots + width * empty).sort(dim=1).values
    return torch.where(ranked >= width, ranked - width, ranked)


def selector_named(choice: str) -> Selector:
    """The selector of this name: greedy or sampled."""
    return Greedy() if choice == "greedy" else Sampled()
