"""Walks: where events are read from changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dips.stream.users import Columns

LIVE = {"users": 3, "policy_wait": 0, "policy_rest": 0}


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "learned", **LIVE},
        {"policy": "dips", "stretch": 2, **LIVE},
        {"policy": "hardest", "users": 3},
        {"policy": "all", "users": 3},
        {"policy": "reservoir"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_events_that_wait_in_host_memory_train_the_same(
    lab: Callable[..., Any], settings: dict[str, Any]
) -> None:
    """To the bit: companies bring their own events along."""
    one, other = lab(), lab()
    other.columns = Columns.waiting(other.data, "cpu")
    jobs = [one.job(seed=seed, **settings) for seed in (0, 1)]
    usual, moved = one.train(jobs), other.train(jobs)
    assert usual.progress.history == moved.progress.history
    tensors = moved.tensors()
    for name, value in usual.tensors().items():
        assert torch.equal(value, tensors[name]), name
