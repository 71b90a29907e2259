"""Recommend items to a user: the recommender reads the sketch and ranks all items it knows."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.model.trained_model import TrainedModel
from dips.recommender.base import Evidence
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
    trained: TrainedModel, sketch: Sketch, seen: Tensor, item_index: Tensor, n: int
) -> list[tuple[str, float]]:
    """Return the items that rank highest for one user; ties in order of item number.

    Items of the sketch are filtered if the model filters them in its ranking (`filter_sketch`). So
    they are with `filter_seen`: histories are not stored, so other seen items cannot be filtered.
    Unknown items in the sketch are ignored.

    Args:
        trained: The trained model.
        sketch: Sketch of the user, [1, size]; items are codes of the store.
        seen: Number of interactions so far, [1].
        item_index: Model item of every code of the store; -1 for unknown items, [codes].
        n: Most items to return.

    Returns:
        Pairs of item and score, best first. The score is the predicted rating, or the logit if the
        model predicts items.
    """
    model = trained.recommender
    code = torch.where(sketch.present, sketch.item, 0)
    item = item_index[code] if len(item_index) else code - 1
    known = sketch.present & (item >= 0)
    shown = sketch._replace(item=item.clamp_min(0), side=torch.where(known, sketch.side, 0))
    age = torch.where(known, seen[:, None] - 1 - sketch.position, 0).float()
    repeats = torch.where(known, sketch.repeats, 1).float()
    evidence = Evidence(shown.token, sketch.rating, known.float(), known.sum(1), age, repeats)
    user = model.read(evidence)
    scores = model.filtered_scores(model.predict_all(user), evidence.item, evidence.weight)
    if trained.explicit:
        scores = model.estimate(scores).clamp(trained.spec.low, trained.spec.high)
    order = scores[0].argsort(descending=True, stable=True)
    best = order[scores[0, order] != -torch.inf][:n].tolist()
    return [(trained.item_ids[number], float(scores[0, number])) for number in best]
