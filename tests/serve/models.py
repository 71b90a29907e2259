"""Models for tests: not trained, but with random parameters of some size."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dips.data.interactions import Strings
from dips.model.trained_model import TrainedModel
from dips.policy.registry import PolicySpec, build_policy
from dips.recommender.registry import RecommenderSpec, make_recommender

DIM = 4


def make_model(
    policy: str = "last",
    size: int = 3,
    periods: tuple[int, ...] = (1,),
    *,
    loss: str = "mse",
    form: str = "dot",
    items: int = 12,
    choice: str = "greedy",
    seed: int = 0,
    residual: bool = True,
    predicted_score: bool = False,
    **more: Any,
) -> TrainedModel:
    """Return a model with this policy, over items "0", "1", ... with ratings from 1 to 5."""
    values = (1.0, 2.0, 3.0, 4.0, 5.0) if loss == "cce" else ()
    scale = {"low": 1.0, "high": 5.0, "rating_values": values}
    offset = 3.0 if loss == "mse" else 0.0
    spec = RecommenderSpec(
        kind=form, loss=loss, items=items, dim=DIM, offset=offset, **scale, **more
    )
    recommender = make_recommender(spec, seed)
    shape = {"items": items, "dim": DIM, "center": 3.0, "spread": 1.2, "residual": residual}
    policy_spec = PolicySpec(name=policy, size=size, predicted_score=predicted_score, **shape)
    chosen = build_policy(policy_spec, seed)
    generator = torch.Generator().manual_seed(seed)
    for module in (recommender, chosen):
        if isinstance(module, nn.Module):
            for value in module.parameters():
                with torch.no_grad():
                    value.add_(torch.randn(value.shape, generator=generator) / 3)
            module.eval().requires_grad_(False)
    return TrainedModel(
        spec=spec,
        recommender=recommender,
        item_ids=Strings.of(map(str, range(items))),
        policy_spec=policy_spec,
        policy=chosen,
        periods=periods,
        selection=choice,
        seed=seed,
    )


def events_of(data) -> list[dict]:
    """Return the events of a dataset in order of time, users interleaved."""
    found = []
    for user in range(data.users):
        for place in range(data.events(user).start, data.events(user).stop):
            event = {"user": data.user_id(user), "item": data.item_ids[int(data.item[place])]}
            if data.rating is not None:
                event["rating"] = float(data.rating[place])
            event["time"] = int(data.time[place])
            found.append(event)
    return sorted(found, key=lambda event: event["time"])
