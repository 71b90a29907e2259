"""Residuals from kernels equal the reference path bit for bit, where kernels exist."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dips.data.side_information import ColumnEncoding, SideInformation
from dips.kernels import dispatch
from dips.kernels.dispatch import computed_signals
from dips.recommender.dot import DotProduct
from dips.recommender.kernel_inputs import model_spec, residuals
from dips.recommender.losses import Loss
from dips.recommender.mlp import MLP
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.testing import random_candidates

ITEMS, DIM = 8, 3
Dot = Callable[..., DotProduct]


@pytest.mark.parametrize("prior_penalty", [0.0, 0.05])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_residuals_equal_the_reference_path(
    dot: Dot, losses: dict[str, Loss], monkeypatch: pytest.MonkeyPatch, size: int,
    prior_penalty: float,
) -> None:  # fmt: skip
    """The inner loop by coefficients and by vectors; empty slots; two runs."""
    pytest.importorskip("numba")
    rest = {"items": ITEMS, "dim": DIM, "prior_penalty": prior_penalty}
    quantized = StackedRecommenders.of(
        [dot(losses["mse"], seed=seed, **rest) for seed in (1, 2)]
    ).quantized()
    sketch, candidates = random_candidates(users=40, size=size, period=2, items=ITEMS, seed=size)
    compiled = residuals(quantized, sketch, candidates)
    monkeypatch.setattr(dispatch, "installed", lambda _: False)
    assert residuals(quantized, sketch, candidates) is None
    reference = recommender_signals(quantized, sketch, candidates).residual
    assert compiled is not None
    assert torch.equal(compiled, reference)
    assert len(compiled.unique()) > 20


def test_kernels_compute_residuals_of_dot_products_with_squared_error_only(
    losses: dict[str, Loss],
) -> None:
    rest = {"items": ITEMS, "dim": DIM}
    timed = SideInformation(clock=ColumnEncoding("time", 0))
    assert "residual" in computed_signals(model_spec(DotProduct(loss=losses["mse"], **rest)))
    for model in (
        DotProduct(loss=losses["bce"], **rest),
        MLP(loss=losses["mse"], **rest),
        DotProduct(loss=losses["mse"], side=timed, **rest),
    ):
        assert "residual" not in computed_signals(model_spec(model))
