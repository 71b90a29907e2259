"""Sample negative items by popularity; all predictions of a step share them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from dips.numerics.hashing import combine, uniform
from dips.recommender.memory_based import popularity
from dips.recommender.stacked import StateDict
from dips.training.rollouts import Job

NEGATIVE = 0x9E6A71
"""Separates the draw of negatives from other draws."""


@final
class NegativeSampler:
    """Samples items in proportion to popularity ** alpha; an item may be drawn several times.

    The n draws are stratified: draw j lies in the j-th of n equal parts of the distribution. An
    item with probability p is expected n p times. Draws are hashes of (seed, step, draw), so a
    resumed run equals an uninterrupted one. A draw costs O(log items). As many draws as items are
    all items, each once.
    """

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        self.seed = torch.tensor([job.config.training.training_seed for job in jobs], device=device)
        weights = [
            job.config.model.negative_exponent * popularity(job.train).double().log1p()
            for job in jobs
        ]
        self.log_probability = torch.stack(weights).to(device).log_softmax(1)  # [runs, items]
        self.cumulative = self.log_probability.exp().cumsum(1)

    def draw(self, state: StateDict, steps: Tensor, active: Tensor) -> None:
        """Replace `negatives` [runs, n] of a state in place, for the `active` [runs] runs.

        `log_q` gets the log of the expected number of draws of each, if the loss has the log-q
        correction.
        """
        negatives = state["negatives"]
        count, items = negatives.shape[1], self.cumulative.shape[1]
        number = torch.arange(count, device=negatives.device)
        key = combine(self.seed, steps.long(), NEGATIVE)[:, None]
        position = (number + uniform(key, number)) / count
        drawn = torch.searchsorted(self.cumulative, position, right=True).clamp_max(items - 1)
        if count == items:  # all of them, once
            drawn = number.expand_as(drawn)
        moves = active[:, None] > 0
        negatives.copy_(torch.where(moves, drawn, negatives))
        if "log_q" in state:
            log_q = self.log_probability.gather(1, drawn) + math.log(count)
            log_q = torch.zeros_like(log_q) if count == items else log_q
            state["log_q"].copy_(torch.where(moves, log_q, state["log_q"]))
