"""What the recommender expects to come next, by one inner step as long as all of them.

That is linear in what was kept, so it is cheap enough to tell a policy at every decision. For the
dot product with a softmax, where items do not come back; everyone else reads the sketch.
"""

from __future__ import annotations

from typing import TypeGuard

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
    """Whether one long step will do."""
    dot = isinstance(model, DotProduct) and not model.has_own
    return dot and isinstance(model.loss, FullSoftmax)


def hunch(model: Recommender, evidence: Evidence, items: Tensor, settle: Settle) -> Tensor:
    """[rows, n] what is predicted of items from a sketch."""
    if not is_quick(model):
        return model.loss.estimate(model.predict(model.read(evidence, settle), items))
    aged = evidence._replace(age=evidence.age.clamp_max(OLDEST))
    pulled = (model.told(aged.item) - _middle(model)) * model.counted(aged, settle)[:, :, None]
    user = settle(_reach(model, aged)[:, None] * pulled.sum(1))
    return _at_first(model, items) + model.along(items, user)


def listener_of(settled: Stack, items: Tensor, size: int) -> Listener:
    """What compiled programs need for it: of these items [n], for sketches up to this size."""
    device, runs = items.device, settled.runs
    ages = torch.arange(OLDEST + 1, device=device).double().expand(runs, 1, -1)
    slots = torch.arange(size + 1, device=device).expand(runs, -1)
    every = items.expand(runs, 1, -1)

    def tables(model: DotProduct, items: Tensor, ages: Tensor, slots: Tensor) -> tuple[Tensor, ...]:
        strength = torch.ones_like(ages)
        if model.fades:
            strength = snap(model.strength(ages, strength), STATE_BITS)
        pull = model.told(items) - _middle(model)
        reach = _reach(model, Evidence.new(slots, slots, slots, slots))
        first = _at_first(model, items)
        return model.rows(items)[0], first[0], pull[0], reach, strength[0]

    return Listener(*settled.call(tables, every, ages, slots))


def _middle(model: DotProduct) -> Tensor:
    """[dim] all items on average, by their chances with a user of whom nothing is known."""
    chance = exact.softmax(model.predict_all(model.user_prior[None]))
    return snap(chance @ model.table, STATE_BITS)[0]


def _reach(model: DotProduct, evidence: Evidence) -> Tensor:
    """[rows] how far all steps go together."""
    return model.inner_steps * model.rate(evidence)


def _at_first(model: DotProduct, items: Tensor) -> Tensor:
    """[rows, n] scores of items for a user of whom nothing is known."""
    return model.predict(model.user_prior.expand(len(items), -1), items)
