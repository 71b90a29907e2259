"""Items that a contrast compares with: drawn by popularity, the same for a whole step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from dips.numerics.hashing import combine, uniform
from dips.recommender.neighbours import popularity
from dips.training.walks import Job

NEGATIVE = 0x9E6A71
"""Keeps the draw of negatives apart from other draws."""


@final
class Negatives:
    """Draws without return, the chances in proportion to popularity ** alpha.

    The lots are hashes of (seed, step, item): a resumed run goes on as if never stopped. Nothing
    waits for the device.
    """

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        self.seed = torch.tensor([job.config.seed for job in jobs], device=device)
        weights = [job.config.popularity * popularity(job.train).log1p() for job in jobs]
        self.weight = torch.stack(weights).to(device)  # [runs, items]

    def draw(self, negatives: Tensor, steps: Tensor, active: Tensor) -> None:
        """New `negatives` [runs, n], in place, for the runs that are `active` [runs]."""
        key = combine(self.seed, steps.long(), NEGATIVE)[:, None]
        lots = uniform(key, torch.arange(self.weight.shape[1], device=key.device))
        ranked = self.weight - (-lots.log()).log()  # the largest are such a sample (Gumbel)
        drawn = ranked.topk(negatives.shape[1], 1).indices
        negatives.copy_(torch.where(active[:, None] > 0, drawn, negatives))
