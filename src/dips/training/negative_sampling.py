"""Items that a contrast compares with: drawn by popularity, the same for a whole step."""

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
"""Keeps the draw of negatives apart from other draws."""


@final
class Negatives:
    """Draws without return, one after the other, by chances as popularity ** alpha.

    The lots are hashes of (seed, step, item): a resumed run goes on as if never stopped. Nothing
    waits for the device.
    """

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        self.seed = torch.tensor([job.config.training.seed for job in jobs], device=device)
        weights = [job.config.model.negative_exponent * popularity(job.train).log1p() for job in jobs]
        self.weight = torch.stack(weights).to(device)  # [runs, items]

    def draw(self, state: StateDict, steps: Tensor, active: Tensor) -> None:
        """New `negatives` [runs, n] in a state, in place, for the runs that are `active` [runs].

        With them their `chances` to be among the n, where the loss asks for these: a sum over all
        items is, in the mean, the sum over those drawn, each over its chance.
        """
        negatives = state["negatives"]
        count, items = negatives.shape[1], self.weight.shape[1]
        key = combine(self.seed, steps.long(), NEGATIVE)[:, None]
        lots = uniform(key, torch.arange(items, device=key.device))
        ranked = self.weight - (-lots.log()).log()  # the largest are such a sample (Gumbel)
        best = ranked.topk(min(count + 1, items), 1)
        drawn, moves = best.indices[:, :count], active[:, None] > 0
        negatives.copy_(torch.where(moves, drawn, negatives))
        if "log_q" not in state:
            return
        # an item is among them where its lot passes the best of those left out (Duffield et al.
        # 2007; Kool et al. 2019): given that edge, the estimate has no bias
        edge = best.values[:, count:] if count < items else -torch.inf
        chances = (-(-(self.weight.gather(1, drawn) - edge).exp()).expm1()).log()
        state["log_q"].copy_(torch.where(moves, chances, state["log_q"]))
