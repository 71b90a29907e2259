"""Sums over all items are kept up to date by the rows that a step changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.recommender.memory_based import popularity
from dips.recommender.stacked import StackedRecommenders
from dips.testing import random_world
from dips.training import state as state_module
from dips.training.lazy_adam import LazyAdam
from dips.training.optimizers import StackedAdam

Make = Callable[..., Any]
LENGTHS = [9, 3, 12, 1, 7, 11, 4, 8, 6, 5, 10, 2, 9, 7]
QUICK: dict[str, Any] = {"policy_warmup_epochs": 0, "policy_freeze_epochs": 0, "batch_size": 8}


def _sums(stack: StackedRecommenders) -> Tensor:
    sums: Tensor = stack.call(lambda model: model.item_sums())
    return sums


@pytest.mark.parametrize("settings", [{"policy": "last"}, {"policy": "learned", "user_batch": 3}])
@pytest.mark.parametrize("runs", [1, 2])
def test_stored_sums_follow_every_step(lab: Make, runs: int, settings: dict[str, Any]) -> None:
    """After an epoch they equal sums that are computed again; the first ones do not."""
    data = random_world(LENGTHS, items=300, seed=1, explicit=False)
    world = lab(explicit=False, data=data, double=True, negatives=5)
    jobs = [world.job(**{**QUICK, **settings, "epochs": 1, "seed": seed}) for seed in range(runs)]
    before = world.start(jobs).stack
    after = world.train(jobs)
    assert isinstance(after.optimizers["items"], LazyAdam)
    found, wanted = after.stack.state["stored_sums"], _sums(after.stack)
    assert found.shape == (runs, 4, 4)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)
    assert float((found - before.state["stored_sums"]).abs().amax((1, 2)).min()) > 1e-2
    best = after.models_with(after.best)[0]
    torch.testing.assert_close(best.state["stored_sums"], _sums(best), atol=1e-10, rtol=1e-10)
    assert not after.stack.one(0).stored_sums.numel()  # a model computes its own


@pytest.mark.parametrize("policy", ["last", "learned"])
def test_sparse_updates_equal_dense_ones_if_every_step_samples_every_item(
    lab: Make, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Nine uniform negatives of nine items are all of them, because draws are stratified."""
    world = lab(explicit=False, double=True, negatives=9)
    settings = {**QUICK, "policy": policy, "negative_exponent": 0.0, "epochs": 2}
    jobs = [world.job(seed=seed, **settings) for seed in range(2)]
    assert all(bool((popularity(job.train) > 0).all()) for job in jobs)
    monkeypatch.setattr(state_module, "SPARSE_FACTOR", 1e-9)
    sparse = world.train(jobs)
    monkeypatch.setattr(state_module, "SPARSE_FACTOR", 1e9)
    dense = world.train(jobs)
    assert isinstance(sparse.optimizers["items"], LazyAdam)
    assert isinstance(dense.optimizers["items"], StackedAdam)
    assert sorted(sparse.stack.state["negatives"][0].tolist()) == list(range(9))
    start = world.start(jobs).parameters()
    for name, value in dense.parameters().items():
        if name != "recommender.stored_sums":
            found = sparse.parameters()[name]
            torch.testing.assert_close(found, value, atol=1e-8, rtol=1e-8, msg=name)
    moved = dense.parameters()["recommender.vectors"] - start["recommender.vectors"]
    assert float(moved.abs().max()) > 0.05
    assert not dense.stack.state["stored_sums"].numel()
