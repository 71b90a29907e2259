"""The state before training: which tables get sparse updates, and sums over all items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dips.data.side_information import SideInformation
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import BPR, FullSoftmax, SampledSoftmax
from dips.recommender.memory_based import popularity
from dips.testing import random_world
from dips.training.lazy_adam import LazyAdam

Make = Callable[..., Any]
ITEMS = 200
SMALL = {"size": 1, "batch_size": 10, "policy": "last"}
"""A batch contains at most 20 items, and the negatives."""


@pytest.fixture
def world(lab: Make) -> Any:
    """Clicks on so many items that most of them are not in the training data."""
    data = random_world([9, 3, 12, 1, 7], items=ITEMS, seed=1, explicit=False)
    return lab(explicit=False, data=data, double=True, negatives=5)


def _is_sparse(world: Any, **settings: Any) -> bool:
    fit_state = world.start([world.job(**{**SMALL, **settings})])
    sparse = isinstance(fit_state.optimizers["items"], LazyAdam)
    assert sparse == bool(fit_state.stack.state["stored_sums"].numel())
    return sparse


def test_sampled_losses_of_many_items_get_sparse_updates(world: Any) -> None:
    """Of a linearised inner loop only. All items of the batch count: 4 * (20 + 29) < 200."""
    for loss, sparse in (
        (SampledSoftmax(5), True),
        (BPR(5), True),
        (SampledSoftmax(29), True),
        (SampledSoftmax(30), False),
        (FullSoftmax(), False),
    ):
        world.loss = loss
        assert _is_sparse(world) == sparse, loss
    world.loss = SampledSoftmax(5)
    assert not _is_sparse(world, policy="all")
    assert not _is_sparse(world, batch_size=30)
    world.form, world.features = DotProduct, {"repeat_feature": False}
    fit_state = world.start([world.job(**SMALL)])
    assert not isinstance(fit_state.optimizers["items"], LazyAdam)  # its inner loop reads all items


def test_categories_need_dense_updates(world: Any) -> None:
    """A step that changes a category changes the vectors of all its items."""
    table = np.arange(ITEMS)[:, None] % 3
    world.features = {"side": SideInformation(kinds=3, width=1, table=table)}
    assert not _is_sparse(world)
    world.features = {}
    assert _is_sparse(world)


def test_stored_sums_are_those_of_the_initial_parameters(world: Any) -> None:
    """Rows without events start at 0, and the sums are those of these rows."""
    jobs = [world.job(seed=seed, **SMALL) for seed in range(2)]
    fit_state = world.start(jobs)
    stack = fit_state.stack
    unread = torch.stack([popularity(job.train) == 0 for job in jobs])
    assert int(unread.sum(1).min()) > ITEMS // 2
    assert not stack.state["vectors"][unread].any()
    assert isinstance(stack.template, LinearisedDotProduct)
    sums = stack.call(lambda model: model.item_sums())
    for state in (stack.state, fit_state.models_with(fit_state.best)[0].state):
        torch.testing.assert_close(state["stored_sums"], sums)
