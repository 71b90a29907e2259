"""Sample negative items by popularity; all predictions of a step share them."""

from __future__ import annotations

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
    """Samples items without replacement, with probabilities in proportion to popularity ** alpha.

    Draws are hashes of (seed, step, item), so a resumed run equals an uninterrupted one.
    """

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        self.seed = torch.tensor([job.config.training.seed for job in jobs], device=device)
        weights = [
            job.config.model.negative_exponent * popularity(job.train).log1p() for job in jobs
        ]
        self.weight = torch.stack(weights).to(device)  # [runs, items]

    def draw(self, state: StateDict, steps: Tensor, active: Tensor) -> None:
        """Replace `negatives` [runs, n] of a state in place, for the `active` [runs] runs.

        `log_q` gets the log inclusion probability of each, if the loss has the log-q correction.
        """
        negatives = state["negatives"]
        count, items = negatives.shape[1], self.weight.shape[1]
        key = combine(self.seed, steps.long(), NEGATIVE)[:, None]
        chance = uniform(key, torch.arange(items, device=key.device))
        ranked = self.weight - (-chance.log()).log()  # Gumbel top-k sampling
        best = ranked.topk(min(count + 1, items), 1)
        drawn, moves = best.indices[:, :count], active[:, None] > 0
        negatives.copy_(torch.where(moves, drawn, negatives))
        if "log_q" not in state:
            return
        # Inclusion probability given the largest key left out: an unbiased estimate (Duffield et
        # al. 2007; Kool et al. 2019).
        edge = best.values[:, count:] if count < items else -torch.inf
        chances = (-(-(self.weight.gather(1, drawn) - edge).exp()).expm1()).log()
        state["log_q"].copy_(torch.where(moves, chances, state["log_q"]))
