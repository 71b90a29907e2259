"""Entry gradients are derivatives of the loss when items have categories and times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dips.credit.adjoint import (
    Adjoint,
    SoftmaxAdjoint,
    SquaredErrorAdjoint,
    TrajectoryAdjoint,
    entry_gradient,
    loss_and_adjoint,
)
from dips.data.side_information import MIDDLE, ColumnEncoding, SideInformation
from dips.recommender.base import Evidence, Recommender
from dips.stream.side_information import token

TABLE = np.array([[0, 2], [1, -1], [-1, -1], [2, 1], [0, -1], [1, 0], [2, -1], [-1, -1]])
KINDS = SideInformation(kinds=3, width=2, table=TABLE)
BOTH = SideInformation(kinds=3, width=2, table=TABLE, clock=ColumnEncoding("time", 0))


def _dated(item: Tensor, sides: SideInformation, seed: int) -> Tensor:
    when = torch.randint(2 * MIDDLE, item.shape, generator=torch.Generator().manual_seed(seed))
    return token(item, when) if sides.clock is not None else item


@pytest.mark.parametrize(
    ("kind", "loss", "form", "sides"),
    [
        ("dot", "mse", SquaredErrorAdjoint, KINDS),
        ("dot", "mse", SquaredErrorAdjoint, BOTH),
        ("dot", "bce", TrajectoryAdjoint, BOTH),
        ("dot", "cce", TrajectoryAdjoint, BOTH),
        ("dot", "softmax", SoftmaxAdjoint, KINDS),
        ("mlp", "mse", TrajectoryAdjoint, BOTH),
        ("mlp", "softmax", TrajectoryAdjoint, KINDS),
        ("linearised", "softmax", SoftmaxAdjoint, KINDS),
        ("linearised-untied", "sampled", SoftmaxAdjoint, KINDS),
    ],
)
def test_entry_gradients_are_derivatives(
    make: Callable[..., Recommender],
    case: Callable[..., Any],
    kind: str,
    loss: str,
    form: type[Adjoint],
    sides: SideInformation,
) -> None:
    model, given = make(kind, loss, side=sides), case()
    generator = torch.Generator().manual_seed(3)
    for name, value in model.named_parameters():
        if name.startswith(("category", "time")):
            value.copy_(torch.randn(value.shape, generator=generator) / 4)
    past, others = given.evidence, _dated(given.others.item, sides, 1)
    past = past._replace(item=_dated(past.item, sides, 2))
    target = _dated(given.item, sides, 4)
    wide = Evidence.new(
        torch.cat([past.item, others], 1),
        torch.cat([past.rating, given.others.rating], 1),
        torch.cat([past.weight, torch.zeros_like(given.others.rating)], 1),
        past.slots,
    )
    value, adjoint = loss_and_adjoint(model, past, target, given.rating)
    assert isinstance(adjoint, form)
    mine = entry_gradient(model, adjoint, wide)
    weight = wide.weight.clone().requires_grad_()
    user = model.read(wide._replace(weight=weight))
    losses = model.losses(user, target[:, None], given.rating[:, None])[:, 0]
    (derivatives,) = torch.autograd.grad(losses.sum(), weight)
    torch.testing.assert_close(value, losses.detach(), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(mine, derivatives, atol=1e-10, rtol=1e-10)
