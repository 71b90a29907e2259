"""Residuals from compiled loops against those in plain torch: the same bits, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dips.data.side_information import ColumnEncoding, SideInformation
from dips.recommender import kernel_inputs as compiled
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.mlp import MLP
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.testing import random_candidates

ITEMS, DIM = 8, 3
Dot = Callable[..., DotProduct]


@pytest.mark.parametrize("pull", [0.0, 0.05])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_compiled_residuals_are_the_same(
    dot: Dot, losses: dict[str, Loss], monkeypatch: pytest.MonkeyPatch, size: int, pull: float
) -> None:
    """By coefficients and by vectors; sketches have empty slots; two runs."""
    pytest.importorskip("numba")
    rest = {"items": ITEMS, "dim": DIM, "prior_penalty": pull}
    quantized = StackedRecommenders.of(
        [dot(losses["mse"], seed=seed, **rest) for seed in (1, 2)]
    ).quantized()
    sketch, candidates = random_candidates(users=40, size=size, period=2, items=ITEMS, seed=size)
    quick = compiled.residuals(quantized, sketch, candidates)
    monkeypatch.setattr(compiled, "installed", lambda _: False)
    assert compiled.residuals(quantized, sketch, candidates) is None
    slow = recommender_signals(quantized, sketch, candidates).residual
    assert quick is not None
    assert torch.equal(quick, slow)
    assert len(quick.unique()) > 20


def test_what_is_not_linear(losses: dict[str, Loss]) -> None:
    rest = {"items": ITEMS, "dim": DIM}
    assert compiled.is_linear(DotProduct(loss=losses["mse"], **rest))
    assert not compiled.is_linear(DotProduct(loss=losses["bce"], **rest))
    assert not compiled.is_linear(MLP(loss=losses["mse"], **rest))
    timed = SideInformation(clock=ColumnEncoding("time", 0))
    assert not compiled.is_linear(DotProduct(loss=losses["mse"], side=timed, **rest))
