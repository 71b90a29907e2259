"""TrainingRollouts give the same results with events on the device and in host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dips.stream.users import EventColumns

LIVE = {"user_batch": 3, "policy_warmup_epochs": 0, "policy_freeze_epochs": 0}


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "learned", **LIVE},
        {"policy": "dips", "update_interval": 2, **LIVE},
        {"policy": "hardest", "user_batch": 3},
        {"policy": "all", "user_batch": 3},
        {"policy": "reservoir"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_events_in_host_memory_give_the_same_training(
    lab: Callable[..., Any], settings: dict[str, Any]
) -> None:
    """Exactly: each user batch copies its own events to the device."""
    _assert_the_same(lab, [{"seed": seed, **settings} for seed in (0, 1)])


@pytest.mark.parametrize(
    "runs",
    [
        [{"policy": "last"}, {"policy": "last", "seed": 1}, {"policy": "reservoir", "seed": 1}],
        [
            {"policy": "last", "resketch_epochs": 2},
            {"policy": "hardest", "resketch_epochs": 2, "seed": 1},
        ],
    ],
    ids=["last-last-reservoir", "last-hardest"],
)
def test_groups_of_a_stack_read_the_same_events(
    lab: Callable[..., Any], runs: list[dict[str, Any]]
) -> None:
    """Also in host memory: all groups use the same event numbers."""
    _assert_the_same(lab, runs)


def _assert_the_same(lab: Callable[..., Any], runs: Sequence[dict[str, Any]]) -> None:
    one, other = lab(), lab()
    other.columns = EventColumns.on_host(other.data, "cpu")
    jobs = [one.job(**settings) for settings in runs]
    usual, moved = one.train(jobs), other.train(jobs)
    assert usual.progress.history == moved.progress.history
    tensors = moved.tensors()
    for name, value in usual.tensors().items():
        assert torch.equal(value, tensors[name]), name
