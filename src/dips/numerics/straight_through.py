"""The soft choice whose slope replaces that of the hard one. Scores say how much to keep."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.numerics.topk import project_top_k

ESTIMATORS = ("straight-through", "gumbel", "reinforce")
"""How the slope of a choice is estimated."""


def soft_keep(scores: Tensor, present: Tensor, size: int) -> Tensor:
    """[rows, n] how much of each entry is kept: the chance that it stays, were the choice sampled.

    Rows with one entry too many drop it by softmax (Eq. 4), rows with more are projected (Eq. 5),
    rows in which everything fits keep everything.
    """
    kept = 1 - _removal(-scores, present).exp()
    count = present.sum(-1, keepdim=True)
    if scores.shape[-1] > size + 1:
        kept = torch.where(count > size + 1, project_top_k(scores, size, present), kept)
    return torch.where(present & (count > size), kept, present.to(scores.dtype))


def gumbel_keep(
    scores: Tensor, noise: Tensor, present: Tensor, size: int, temperature: float
) -> Tensor:
    """[rows, n] how much is kept when one is dropped, relaxed around the drawn `noise`."""
    kept = 1 - _removal((noise - scores) / temperature, present).exp()
    crowded = present.sum(-1, keepdim=True) > size
    return torch.where(present & crowded, kept, present.to(scores.dtype))


def log_removal(scores: Tensor, present: Tensor, dropped: Tensor) -> Tensor:
    """[rows] log-probability that the entry in slot `dropped` [rows] goes; 0 where that is -1."""
    chosen = _removal(-scores, present).gather(-1, dropped.clamp_min(0)[..., None])[..., 0]
    return torch.where(dropped >= 0, chosen, 0.0)


def check_estimator(name: str, periods: Sequence[int], choice: str) -> None:
    """Refuse an estimator that does not exist, or not for this schedule and choice."""
    if name not in ESTIMATORS:
        raise ConfigError(f"unknown estimator '{name}': choose one of {', '.join(ESTIMATORS)}")
    if name == "straight-through":
        return
    if any(period != 1 for period in periods):
        raise ConfigError(
            f"estimator '{name}' works online only: set every = 1, or estimator = straight-through"
        )
    if choice != "sampled":
        raise ConfigError(
            f"estimator '{name}' needs drawn choices: set choice = sampled, "
            "or estimator = straight-through"
        )


def _removal(logits: Tensor, present: Tensor) -> Tensor:
    """Log-softmax over the present entries; finite in rows without any."""
    return logits.masked_fill(~present, torch.finfo(logits.dtype).min).log_softmax(-1)
