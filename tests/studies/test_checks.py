"""What cannot work is refused before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.studies.checks import check, check_process_group
from dips.training.config import TrainConfig

World = Callable[..., Interactions]
SAMPLED: dict[str, Any] = {"policy": "learned", "choice": "sampled"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dropout": 1.0}, "dropout is 1: it must be at least 0 and below 1"),
        ({"dropout": -0.1}, "dropout is -0.1: it must be at least 0 and below 1"),
        ({"discount": 1.5}, "discount is 1.5: it must be between 0 and 1"),
        ({"policy": "learned", "estimator": "gumbel"}, "'gumbel' needs drawn choices"),
        ({**SAMPLED, "estimator": "gumbel", "every": 2}, "'gumbel' works online only"),
        ({**SAMPLED, "estimator": "reinforce"}, "set credit = identity or discount"),
        ({"repeat_feature": 1}, "leave --repeat-feature out"),
        (
            {"task": "implicit", "recommender": "mlp", "repeat_feature": 1},
            "leave --repeat-feature out",
        ),
        ({"filter_sketch": 1}, "striking is for the implicit task: leave --filter-sketch out"),
        ({"task": "implicit", "cosine": 1}, "leave --cosine out"),
        ({"recommender": "gru", "cosine": 1}, "leave --cosine out"),
        (
            {"task": "implicit", "recommender": "gru", "repeat_feature": 1, "filter_sketch": 1},
            "returning and striking contradict each other",
        ),
        ({"task": "implicit", "recency_decay": 1, "negatives": 5}, "leave --recency-decay out"),
        ({"task": "implicit", "separate_input": 1, "negatives": 5}, "leave --separate-input out"),
    ],
)
def test_settings_that_cannot_work(world: World, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        check(world(), TrainConfig(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.0, "discount": 1.0},
        {"policy": "last", "estimator": "reinforce"},  # nobody asks for it
        {**SAMPLED, "estimator": "reinforce", "credit": "discount"},
        {**SAMPLED, "estimator": "gumbel", "credit": "survival"},
        {"policy": "dips", "stretch": 1, "every": 4},
        {"policy": "all", "users": 2, "stretch": 3},
        {"task": "implicit", "recommender": "sasrec", "repeat_feature": 1, "negatives": 5},
        {"task": "implicit", "recommender": "gru", "filter_sketch": 1, "cosine": 1, "negatives": 5},
        {"task": "implicit", "filter_sketch": 1},
        {"task": "implicit", "recommender": "mlp", "filter_sketch": 1, "loss": "bpr"},
        {
            "repeat_feature": 0,
            "filter_sketch": 0,
            "recency_decay": 0,
            "separate_input": 0,
            "cosine": 0,
        },
    ],
)
def test_settings_that_work(world: World, settings: dict[str, Any]) -> None:
    check(world(), TrainConfig(**settings))


def test_histories_that_count_from_their_middle_on(world: World) -> None:
    """A decision before the first prediction that counts leaves no trace to learn from."""
    data = world([5, 6])
    late = replace(data, warmup=np.array([0, 2]))
    check(late, TrainConfig(policy="last"))
    for settings in ({"policy": "learned"}, {"users": 3}, {"stretch": 1}):
        check(data, TrainConfig(**settings))
        with pytest.raises(ConfigError, match="counts some histories from their middle on"):
            check(late, TrainConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "processes", "sentence"),
    [
        ({}, 3, "3 processes share the users, and"),
        ({"policy": "learned", "estimator": "reinforce"}, 2, "train in one process"),
    ],
)
def test_what_several_processes_cannot_do(
    world: World, settings: dict[str, Any], processes: int, sentence: str
) -> None:
    parts = [world([5, 6, 4]), world([5, 6])]
    config = TrainConfig(**settings)
    check_process_group(parts, config, 1)
    check_process_group(parts, TrainConfig(), 2)
    with pytest.raises(ConfigError, match=sentence):
        check_process_group(parts, config, processes)
