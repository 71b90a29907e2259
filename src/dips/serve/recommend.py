"""Recommend items to a user: the recommender reads the sketch and ranks all items it knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from dips.errors import ConfigError, DataError
from dips.model.trained_model import TrainedModel
from dips.recommender.base import Evidence
from dips.recommender.linearised import LinearisedDotProduct
from dips.serve.fields import parse_name
from dips.sketch.records import Sketch


def parse_count(n: Any) -> int:
    """Return the number of items to recommend.

    Raises:
        ConfigError: It is not a whole number from 1 on.
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or int(n) < 1:
        raise ConfigError(f"n is {n!r}: it must be a whole number from 1 on")
    return int(n)


@torch.no_grad()
def recommend(
    trained: TrainedModel,
    sketch: Sketch,
    item_names: Sequence[str],
    seen: Tensor,
    n: int,
    excluded: Sequence[int] = (),
) -> list[tuple[str, float]]:
    """Return the items that rank highest for one user; ties in order of item number.

    Items of the sketch are filtered if the model filters them in its ranking (`filter_sketch`). So
    they are with `filter_seen`: histories are not stored, so other seen items cannot be filtered.
    Unknown items in the sketch are ignored.

    Args:
        trained: The trained model.
        sketch: Sketch of the user, [1, size]; items are codes of the store.
        item_names: Item names by code of the store.
        seen: Number of interactions so far, [1].
        n: Most items to return.
        excluded: Items of the model that are not recommended.

    Returns:
        Pairs of item and score, best first. The score is the predicted rating, or the logit if the
        model predicts items.
    """
    model, number = trained.recommender, trained.item_ids.index
    slots = zip(sketch.item[0].tolist(), sketch.present[0].tolist(), strict=True)
    item = torch.tensor([[number.get(item_names[c], -1) if kept else -1 for c, kept in slots]])
    known = item >= 0
    shown = sketch._replace(item=item.clamp_min(0), side=torch.where(known, sketch.side, 0))
    age = torch.where(known, seen[:, None] - 1 - sketch.position, 0).float()
    repeats = torch.where(known, sketch.repeats, 1).float()
    evidence = Evidence(shown.token, sketch.rating, known.float(), known.sum(1), age, repeats)
    user = model.read(evidence)
    scores = model.filtered_scores(model.predict_all(user), evidence.item, evidence.weight)
    if trained.explicit:
        scores = model.estimate(scores).clamp(trained.spec.low, trained.spec.high)
    ranked = scores[0].clone()
    ranked[list(excluded)] = -torch.inf
    return [(trained.item_ids[item], float(ranked[item])) for item in _highest(ranked, n)]


def _highest(scores: Tensor, n: int) -> list[int]:
    """Return the `n` items of the highest scores above -inf, best first; NaN counts as highest."""
    least = scores.topk(min(n, len(scores))).values[-1]
    found = ((scores >= least) | scores.isnan()).nonzero()[:, 0]  # sorting all items takes longer
    order = found[scores[found].argsort(descending=True, stable=True)]
    best: list[int] = order[scores[order] != -torch.inf][:n].tolist()
    return best


def with_stored_sums(trained: TrainedModel) -> TrainedModel:
    """Return the model with its sums over all items computed once, not for every user."""
    if isinstance(trained.recommender, LinearisedDotProduct):
        return replace(trained, recommender=trained.recommender.with_stored_sums())
    return trained


def item_numbers(trained: TrainedModel, names: Iterable[str]) -> list[int]:
    """Return the model's numbers of some items, without those that it does not know.

    Args:
        trained: The trained model.
        names: Names of the items.

    Raises:
        DataError: A name is invalid, or `names` is one text.
    """
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise DataError(f"exclude must be a list of items, not {names!r}")
    number = trained.item_ids.index
    found = (number.get(parse_name(name, "exclude"), -1) for name in names)
    return [item for item in found if item >= 0]
