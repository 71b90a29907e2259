"""Evaluation metrics, as terms per prediction that are summed and pooled.

Knows nothing about policies or runs. Conventions:

- Metrics pool over interactions, not over users.
- RMSE clamps predictions to the rating range.
- Items are ranked among all items, seen ones included, except items of the sketch where
  `filter_sketch` is on, and all seen items but the target where `filter_seen` is on.
- Ties: a target has the middle rank of the items with its score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

CUTOFF = 20
"""Cutoff of the ranking metrics: Recall@20, MRR@20, NDCG@20."""


def ranks(scores: Tensor, target: Tensor) -> Tensor:
    """Return the rank of each target among all items, [rows], from 1.

    Each other item with the target's score counts half. A target whose score is NaN has rank NaN.

    Args:
        scores: Scores of all items, [rows, items].
        target: Item of each row, [rows].
    """
    own = scores.gather(-1, target[..., None])
    above = (scores > own).sum(-1)
    equal = (scores == own).sum(-1) - 1
    return torch.where(own[..., 0].isnan(), torch.nan, 1 + above + equal / 2)


def ranking_terms(rank: Tensor) -> dict[str, Tensor]:
    """Return the terms of Recall, MRR and NDCG at 20 for each prediction, [rows] each.

    Args:
        rank: Rank of the target, [rows]; NaN gives NaN.
    """
    hit = torch.where(rank.isnan(), torch.nan, (rank <= CUTOFF).double())
    return {
        f"recall@{CUTOFF}": hit,
        f"mrr@{CUTOFF}": hit / rank,
        f"ndcg@{CUTOFF}": hit / torch.log2(1 + rank.double()),
    }


def rating_terms(estimate: Tensor, rating: Tensor, low: float, high: float) -> dict[str, Tensor]:
    """Return the squared error of each prediction, clamped to the rating range, [rows]."""
    return {"squared_error": (estimate.double().clamp(low, high) - rating.double()) ** 2}


def area_under_curve(score: Tensor, liked: Tensor) -> float:
    """Return the AUC: the probability that a liked interaction scores above a disliked one.

    Ties count half. NaN if all or none are liked.

    Args:
        score: Predicted scores, [rows].
        liked: 1 for likes, else 0, [rows].
    """
    positive, total = int(liked.sum()), len(liked)
    if positive in (0, total):
        return float("nan")
    unique: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.unique
    _, group, counts = unique(score, return_inverse=True, return_counts=True)
    below = counts.cumsum(0) - counts
    middle = below.double() + (counts.double() + 1) / 2
    mass = (middle[group] * liked.double()).sum()
    return float((mass - positive * (positive + 1) / 2) / (positive * (total - positive)))


def pool_metrics(sums: Mapping[str, float], count: float) -> dict[str, float]:
    """Return metrics from sums of terms over `count` interactions."""
    result = {}
    for name, total in sums.items():
        if name == "squared_error":
            result["rmse"] = (total / count) ** 0.5
        else:
            result[name] = total / count
    return result


LOWER_IS_BETTER = {"rmse", "logloss"}


def primary_metric(metrics: Mapping[str, float]) -> str:
    """Return the name of the metric that selects epochs, settings and baselines."""
    if "auc" in metrics:
        return "logloss"
    for name in ("rmse", f"recall@{CUTOFF}"):
        if name in metrics:
            return name
    raise KeyError(f"no primary metric among {sorted(metrics)}")
