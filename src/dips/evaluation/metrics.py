"""Measures of predictions, as sums that can be pooled. Knows nothing of policies or runs.

Conventions (DESIGN 3): metrics pool over interactions; RMSE clamps to the rating range; ranking is
among all items, seen ones included; a target ranks in the middle of its ties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

CUTOFF = 20


def ranks(scores: Tensor, target: Tensor) -> Tensor:
    """Rank of each target [rows] among scores [rows, items], from 1; ties count half.

    A score that is not a number is above and below nothing: it has no rank, least of all the first.
    """
    own = scores.gather(-1, target[..., None])
    above = (scores > own).sum(-1)
    equal = (scores == own).sum(-1) - 1
    return torch.where(own[..., 0].isnan(), torch.nan, 1 + above + equal / 2)


def ranking_terms(rank: Tensor) -> dict[str, Tensor]:
    """What each prediction adds to the ranking metrics, given the rank of its target."""
    hit = torch.where(rank.isnan(), torch.nan, (rank <= CUTOFF).double())
    return {
        f"recall@{CUTOFF}": hit,
        f"mrr@{CUTOFF}": hit / rank,
        f"ndcg@{CUTOFF}": hit / torch.log2(1 + rank.double()),
    }


def rating_terms(estimate: Tensor, rating: Tensor, low: float, high: float) -> dict[str, Tensor]:
    """What each prediction adds to the squared error, clamped to the range of ratings."""
    return {"squared_error": (estimate.double().clamp(low, high) - rating.double()) ** 2}


def area_under_curve(score: Tensor, liked: Tensor) -> float:
    """Chance that a liked interaction scores above a disliked one, ties counting half."""
    positive, total = int(liked.sum()), len(liked)
    if positive in (0, total):
        return float("nan")
    unique: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.unique
    _, place, counts = unique(score, return_inverse=True, return_counts=True)
    below = counts.cumsum(0) - counts
    middle = below.double() + (counts.double() + 1) / 2
    mass = (middle[place] * liked.double()).sum()
    return float((mass - positive * (positive + 1) / 2) / (positive * (total - positive)))


def pooled(sums: Mapping[str, float], count: float) -> dict[str, float]:
    """Metrics from sums over interactions."""
    result = {}
    for name, total in sums.items():
        if name == "squared_error":
            result["rmse"] = (total / count) ** 0.5
        else:
            result[name] = total / count
    return result


LOWER_IS_BETTER = {"rmse", "logloss"}


def headline(metrics: Mapping[str, float]) -> str:
    """The metric that decides between settings."""
    if "auc" in metrics:
        return "logloss"
    for name in ("rmse", f"recall@{CUTOFF}"):
        if name in metrics:
            return name
    raise KeyError(f"no headline among {sorted(metrics)}")
