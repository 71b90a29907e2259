"""Dot products with learned weights of sketch entries: what their two forms share."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from dips.recommender.base import Evidence
from dips.recommender.ncf import ITEM_TABLES, NCF, embed

SPREAD = 0.05
"""Initial standard deviation of the elements of item vectors."""
RECENCY_DECAY = {True: (2.0, -1.0), False: (0.0, 2.0)}
"""Initial recency decay, by `repeat_feature`: log of the age scale, and the power before softplus.

Where items repeat, the past counts for long. Where they do not, the newest entries count most.
"""
REPEAT_EXPONENT = 0.5
"""Initial exponent of the repeat count in an entry's weight."""


class WeightedEntries(NCF, ABC):
    """NCF whose entries have learned weights by age and repeat count, and their own embedding.

    Args:
        dim: Length of an item vector.
        generator: Source of the initial parameters.
        repeat_feature: Let an entry's weight grow with a learned power of its repeat count.
        recency_decay: Let an entry's weight decay as a learned power of its age.
        tie_embeddings: False adds a learned offset to the vectors of sketch entries, so entries
            have a separate input embedding. The offset starts at 0.
        settings: Settings of `NCF`.
    """

    item_tables: ClassVar[tuple[str, ...]] = (*ITEM_TABLES, "input_offset")

    def __init__(
        self,
        *,
        dim: int,
        generator: torch.Generator | None,
        repeat_feature: bool,
        recency_decay: bool,
        tie_embeddings: bool,
        **settings: Any,
    ) -> None:
        super().__init__(
            dim=dim,
            spread=SPREAD,
            generator=generator or torch.Generator().manual_seed(0),
            **settings,
        )
        self.has_repeat_feature = self.counts_repeats = repeat_feature
        self.has_recency_decay, self.tie_embeddings = recency_decay, tie_embeddings
        if not tie_embeddings:
            self.input_offset = nn.Parameter(torch.zeros(self.items, dim))
        if recency_decay:
            self.recency_decay = nn.Parameter(torch.tensor(RECENCY_DECAY[repeat_feature]))
        if repeat_feature:
            self.repeat_exponent = nn.Parameter(torch.tensor(REPEAT_EXPONENT))

    def weight_factor(self, age: Tensor, repeats: Tensor) -> Tensor:
        """Return repeats ^ exponent / (1 + age / scale) ^ power, [rows, n]."""
        log_factor = torch.zeros_like(age)
        if self.counts_repeats:
            log_factor = self.repeat_exponent * repeats.clamp_min(1).log()
        if self.has_recency_decay:
            scale, power = self.recency_decay.unbind()
            log_factor = log_factor - functional.softplus(power) * (age * (-scale).exp()).log1p()
        return log_factor.exp()

    def step_size(self, evidence: Evidence) -> Tensor:
        """Return the step size, [rows]: constant with a recency decay or an item-id feature.

        With either of them the curvature does not grow with the number of entries.
        """
        if not (self.has_recency_decay or self.has_repeat_feature):
            return super().step_size(evidence)
        return self.inner_lr.expand(len(evidence.slots))

    def input_vectors(self, items: Tensor) -> Tensor:
        """Return the input embedding of sketch entries, [rows, n, dim]."""
        rows = self.item_vectors(items)
        return rows if self.tie_embeddings else rows + self.input_offsets(items)

    def input_offsets(self, items: Tensor) -> Tensor:
        """Return input vectors minus item vectors, [rows, n, dim]."""
        return embed(self.input_offset, self._item(items))
