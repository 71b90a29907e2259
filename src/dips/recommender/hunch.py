"""What the recommender expects to come next: the inner loop, its softmax straightened out.

Close to the start, where nothing is known of a user, the mean of all items by their chances moves
with the user by their covariance. So steps need no sum over items, and are cheap enough to tell a
policy at every decision. For the dot product with a softmax, where items do not come back; everyone
else reads the sketch.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from dips.numerics import exact
from dips.numerics.descent import Settle
from dips.numerics.exact import STATE_BITS, snap
from dips.numerics.walking import Listener
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import FullSoftmax
from dips.recommender.stack import Stack

OLDEST = (1 << 12) - 1
"""Whatever is older counts as this old."""


def is_quick(model: Recommender) -> TypeGuard[DotProduct]:
    """Whether its softmax can be straightened out."""
    dot = isinstance(model, DotProduct) and not model.has_own and not model.inner_pull
    return dot and isinstance(model.loss, FullSoftmax)


def hunch(model: Recommender, evidence: Evidence, items: Tensor, settle: Settle) -> Tensor:
    """[rows, n] what is predicted of items from a sketch."""
    if not is_quick(model):
        return model.loss.estimate(model.predict(model.read(evidence, settle), items))
    aged = evidence._replace(age=evidence.age.clamp_max(OLDEST))
    weight, around = model.counted(aged, settle), _around(model)
    pulled = ((model.told(aged.item) - around.mean) * weight[:, :, None]).sum(1)
    total, rate = weight.sum(1), model.rate(aged)
    pace = (rate / (rate * total * around.norm).clamp_min(1))[:, None]
    way = torch.zeros_like(pulled)
    for _ in range(model.inner_steps):
        way = settle(way + pace * (pulled - total[:, None] * (way @ around.bend)))
    return _at_first(model, items) + model.along(items, way)


def listener_of(settled: Stack, items: Tensor, size: int) -> Listener:
    """What compiled programs need for it: of these items [n], for sketches up to this size."""
    device, runs = items.device, settled.runs
    ages = torch.arange(OLDEST + 1, device=device).double().expand(runs, 1, -1)
    slots = torch.arange(size + 1, device=device).expand(runs, -1)
    every = items.expand(runs, 1, -1)

    def tables(model: DotProduct, items: Tensor, ages: Tensor, slots: Tensor) -> tuple[Tensor, ...]:
        strength, around = torch.ones_like(ages), _around(model)
        if model.fades:
            strength = snap(model.strength(ages, strength), STATE_BITS)
        rate = model.rate(Evidence.new(slots, slots, slots, slots))
        pull, first = model.told(items) - around.mean, _at_first(model, items)
        return model.rows(items)[0], first[0], pull[0], around.bend, around.norm, rate, strength[0]

    found = settled.call(tables, every, ages, slots)
    return Listener._make([*found, settled.template.inner_steps])


class _Around(NamedTuple):
    """All items as chances have them for a user of whom nothing is known; on the grid."""

    mean: Tensor  # [dim]
    bend: Tensor  # [dim, dim] how it moves with the user's vector
    norm: Tensor  # no direction bends more


def _around(model: DotProduct) -> _Around:
    chance = exact.softmax(model.predict_all(model.user_prior[None]))[0]
    mean = snap(chance @ model.table, STATE_BITS)
    second = (model.table * chance[:, None]).T @ model.table
    bend = snap(second - mean[:, None] * mean, STATE_BITS)
    return _Around(mean, bend, bend.abs().sum(1).amax())


def _at_first(model: DotProduct, items: Tensor) -> Tensor:
    """[rows, n] scores of items for a user of whom nothing is known."""
    return model.predict(model.user_prior.expand(len(items), -1), items)
