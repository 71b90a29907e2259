"""The effect of a weight stays the derivative of the loss in it when categories and time count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dips.credit.adjoint import Effect, Listwise, Path, Quadratic, effect_of, worth
from dips.data.side_information import MIDDLE, Coded, SideInformation
from dips.recommender.base import Evidence, Recommender
from dips.stream.side_information import token

TABLE = np.array([[0, 2], [1, -1], [-1, -1], [2, 1], [0, -1], [1, 0], [2, -1], [-1, -1]])
KINDS = SideInformation(kinds=3, width=2, table=TABLE)
BOTH = SideInformation(kinds=3, width=2, table=TABLE, clock=Coded("time", 0))


def _dated(item: Tensor, sides: SideInformation, seed: int) -> Tensor:
    when = torch.randint(2 * MIDDLE, item.shape, generator=torch.Generator().manual_seed(seed))
    return token(item, when) if sides.clock is not None else item


@pytest.mark.parametrize(
    ("kind", "loss", "form", "sides"),
    [
        ("dot", "mse", Quadratic, KINDS),
        ("dot", "mse", Quadratic, BOTH),
        ("dot", "bce", Path, BOTH),
        ("dot", "cce", Path, BOTH),
        ("dot", "softmax", Listwise, KINDS),
        ("mlp", "mse", Path, BOTH),
        ("mlp", "softmax", Path, KINDS),
    ],
)
def test_effects_are_derivatives(
    make: Callable[..., Recommender],
    case: Callable[..., Any],
    kind: str,
    loss: str,
    form: type[Effect],
    sides: SideInformation,
) -> None:
    model, given = make(kind, loss, sides=sides), case()
    generator = torch.Generator().manual_seed(3)
    for name, value in model.named_parameters():
        if name in ("kinds", "kind_bias", "pace", "trend"):
            value.copy_(torch.randn(value.shape, generator=generator) / 4)
    past, others = given.evidence, _dated(given.others, sides, 1)
    past = past._replace(item=_dated(past.item, sides, 2))
    target = _dated(given.item, sides, 4)
    wide = Evidence.new(
        torch.cat([past.item, others], 1),
        torch.cat([past.rating, given.other_ratings], 1),
        torch.cat([past.weight, torch.zeros_like(given.other_ratings)], 1),
        past.slots,
    )
    value, effect = effect_of(model, past, target, given.rating)
    assert isinstance(effect, form)
    mine = worth(model, effect, wide.item, wide.rating)
    weight = wide.weight.clone().requires_grad_()
    user = model.read(wide._replace(weight=weight))
    losses = model.losses(user, target[:, None], given.rating[:, None])[:, 0]
    (slopes,) = torch.autograd.grad(losses.sum(), weight)
    torch.testing.assert_close(value, losses.detach(), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(mine, slopes, atol=1e-10, rtol=1e-10)
