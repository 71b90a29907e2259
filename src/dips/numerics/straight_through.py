"""Differentiable relaxations of a hard choice: soft keep probabilities and log-probabilities.

Only the soft side of the straight-through estimator is here. The hard choice was made in the
rollout (`sketch/selection.py`). `training/estimators.py` multiplies the probabilities with credit,
so the hard choice gets the gradient of the soft one. A high score means keep. The paper's online
scores mean remove, so signs are turned here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.numerics.topk import project_top_k


def soft_keep(scores: Tensor, present: Tensor, size: int) -> Tensor:
    """Return the probability that each entry is kept if the choice is sampled.

    Its slope is the straight-through slope of the hard choice. Each row follows its own rule:

    | present entries | rule                                        |
    |-----------------|---------------------------------------------|
    | size or fewer   | all are kept                                |
    | size + 1        | one is removed by softmax (Eq. 4)           |
    | more            | `size` are kept by Top-K projection (Eq. 5) |

    Args:
        scores: [rows, n]
        present: Which slots hold an entry, [rows, n].
        size: Sketch size K.

    Returns:
        [rows, n], differentiable in the scores; 0 in empty slots.
    """
    kept = 1 - _log_softmax(-scores, present).exp()
    count = present.sum(-1, keepdim=True)
    if scores.shape[-1] > size + 1:
        kept = torch.where(count > size + 1, project_top_k(scores, size, present), kept)
    return torch.where(present & (count > size), kept, present.to(scores.dtype))


def gumbel_keep(
    scores: Tensor, noise: Tensor, present: Tensor, size: int, temperature: float
) -> Tensor:
    """Return relaxed keep weights when one entry is removed: the Gumbel softmax of Eq. 4.

    Args:
        scores: [rows, n]
        noise: Gumbel noise of the recorded choice, [rows, n].
        present: Which slots hold an entry, [rows, n].
        size: Sketch size K.
        temperature: Of the softmax; lower is closer to the hard choice.

    Returns:
        [rows, n], differentiable in the scores; 0 in empty slots.
    """
    kept = 1 - _log_softmax((noise - scores) / temperature, present).exp()
    over_full = present.sum(-1, keepdim=True) > size
    return torch.where(present & over_full, kept, present.to(scores.dtype))


def log_removal(scores: Tensor, present: Tensor, dropped: Tensor) -> Tensor:
    """Return the log-probability of the removal that was sampled (Eq. 4), for REINFORCE.

    Args:
        scores: [rows, n]
        present: Which slots hold an entry, [rows, n].
        dropped: Slot of the removed entry, [rows]; -1 if none was removed.

    Returns:
        [rows]; 0 where none was removed.
    """
    chosen = _log_softmax(-scores, present).gather(-1, dropped.clamp_min(0)[..., None])[..., 0]
    return torch.where(dropped >= 0, chosen, 0.0)


def _log_softmax(logits: Tensor, present: Tensor) -> Tensor:
    """Return the log-softmax over the present entries; finite in rows without any."""
    return logits.masked_fill(~present, torch.finfo(logits.dtype).min).log_softmax(-1)
