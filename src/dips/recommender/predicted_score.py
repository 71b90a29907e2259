"""What the recommender expects to come next: the inner loop, its softmax straightened out.

Close to the start, where nothing is known of a user, the mean of all items by their chances moves
with the user by their covariance. So steps need no sum over items, and are cheap enough to tell a
policy at every decision. For the dot product with a softmax, where items do not come back; everyone
else reads the sketch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from dips.kernels.triton_launch import Listener
from dips.numerics import fixed_point
from dips.numerics.descent import Rounding
from dips.numerics.fixed_point import STATE_BITS, quantize
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import FullSoftmax
from dips.recommender.stacked import StackedRecommenders

OLDEST = (1 << 12) - 1
"""Whatever is older counts as this old."""


def is_quick(model: Recommender) -> TypeGuard[DotProduct]:
    """Whether its softmax can be straightened out."""
    dot = isinstance(model, DotProduct) and not model.has_own and not model.prior_penalty
    return dot and isinstance(model.loss, FullSoftmax)


class Around(NamedTuple):
    """All items as chances have them for a user of whom nothing is known; on the grid."""

    mean: Tensor  # [dim]
    bend: Tensor  # [dim, dim] how it moves with the user's vector
    norm: Tensor  # no direction bends more


def around(model: DotProduct) -> Around:
    """From one look at the whole catalogue."""
    chance = fixed_point.softmax(model.predict_all(model.user_prior[None]))[0]
    mean = quantize(chance @ model.table, STATE_BITS)
    second = (model.table * chance[:, None]).T @ model.table
    bend = quantize(second - mean[:, None] * mean, STATE_BITS)
    return Around(mean, bend, bend.abs().sum(1).amax())


@lru_cache(maxsize=2)
def around_of(quantized: StackedRecommenders) -> Around:
    """The same with a leading axis of runs; kept, so of a stack that is asked again and again."""
    return Around(*quantized.call(around))


def predicted_score(
    model: DotProduct, near: Around, evidence: Evidence, items: Tensor, rounding: Rounding
) -> Tensor:
    """[rows, n] scores of items from a sketch, where they are `near` the start."""
    aged = evidence._replace(age=evidence.age.clamp_max(OLDEST))
    weight = model.counted(aged, rounding)
    pulled = ((model.told(aged.item) - near.mean) * weight[:, :, None]).sum(1)
    total, rate = weight.sum(1), model.rate(aged)
    pace = (rate / (rate * total * near.norm).clamp_min(1))[:, None]
    way = torch.zeros_like(pulled)
    for _ in range(model.inner_steps):
        way = rounding(way + pace * (pulled - total[:, None] * (way @ near.bend)))
    return _at_first(model, items) + model.along(items, way)


def listener_of(quantized: StackedRecommenders, items: Tensor, size: int) -> Listener:
    """What compiled programs need for it: of these items [n], for sketches up to this size."""
    device, runs = items.device, quantized.runs
    ages = torch.arange(OLDEST + 1, device=device).double().expand(runs, 1, -1)
    slots = torch.arange(size + 1, device=device).expand(runs, -1)
    every = items.expand(runs, 1, -1)

    def tables(
        model: DotProduct, items: Tensor, mean: Tensor, ages: Tensor, slots: Tensor
    ) -> tuple[Tensor, ...]:
        strength = quantize(model.strength(ages, torch.ones_like(ages)), STATE_BITS)
        rate = model.rate(Evidence.new(slots, slots, slots, slots))
        pull, first = model.told(items) - mean, _at_first(model, items)
        return model.rows(items)[0], first[0], pull[0], rate, strength[0]

    near = Around(*quantized.call(around))
    vectors, first, pull, rate, strength = quantized.call(tables, every, near.mean, ages, slots)
    steps = quantized.template.inner_steps
    return Listener(vectors, first, pull, near.bend, near.norm, rate, strength, steps)


def _at_first(model: DotProduct, items: Tensor) -> Tensor:
    """[rows, n] scores of items for a user of whom nothing is known."""
    return model.predict(model.user_prior.expand(len(items), -1), items)
