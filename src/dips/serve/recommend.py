"""What to show a user: the recommender reads the sketch and ranks all items it knows."""

from __future__ import annotations

import torch
from torch import Tensor

from dips.model.trained_model import TrainedModel
from dips.recommender.base import Evidence
from dips.sketch.records import Sketch


@torch.no_grad()
def recommend(
    trained: TrainedModel, sketch: Sketch, seen: Tensor, number: Tensor, n: int
) -> list[tuple[str, float]]:
    """The best items for one user [1, size], ties by number.

    Items that the sketch holds are left out where the run strikes them out, else they may come.
    `seen` [1] is how many interactions there were. The score is the estimated rating, or the logit
    where the run predicts items. Items that the run does not know tell it nothing.
    """
    model = trained.recommender
    code = torch.where(sketch.present, sketch.item, 0)
    item = number[code] if len(number) else code - 1
    known = sketch.present & (item >= 0)
    shown = sketch._replace(item=item.clamp_min(0), side=torch.where(known, sketch.side, 0))
    age = torch.where(known, seen[:, None] - 1 - sketch.position, 0).float()
    often = torch.where(known, sketch.repeats, 1).float()
    evidence = Evidence(shown.token, sketch.rating, known.float(), known.sum(1), age, often)
    scores = model.offered(model.predict_all(model.read(evidence)), evidence.item, evidence.weight)
    if trained.explicit:
        scores = model.loss.estimate(scores).clamp(trained.spec.low, trained.spec.high)
    order = scores[0].argsort(descending=True, stable=True)
    best = order[scores[0, order] != -torch.inf][:n].tolist()
    return [(trained.item_ids[place], float(scores[0, place])) for place in best]
