"""What cannot work is refused before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dips.data.interactions import Interactions
from dips.data.synthetic import stream
from dips.errors import ConfigError, DataError, DataWarning
from dips.studies.checks import check, check_process_group, split
from dips.training.config import TrainConfig

World = Callable[..., Interactions]
SAMPLED: dict[str, Any] = {"policy": "learned", "selection": "sampled"}
SAMPLED_INNER_LOSS: dict[str, Any] = {"task": "implicit", "negatives": 5, "inner_loss": "softmax"}
"""The inner loop, too, compares an item with the negatives."""


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dropout": 1.0}, "dropout is 1: it must be at least 0 and below 1"),
        ({"dropout": -0.1}, "dropout is -0.1: it must be at least 0"),
        ({"discount": 1.5}, "discount is 1.5: it must be between 0 and 1"),
        ({"policy": "learned", "estimator": "gumbel"}, "'gumbel' needs sampled choices"),
        ({**SAMPLED, "estimator": "gumbel", "every": 2}, "'gumbel' works online only"),
        ({**SAMPLED, "estimator": "reinforce"}, "set credit = identity or discount"),
        ({"repeat_feature": True}, "leave --repeat-feature out"),
        (
            {"task": "implicit", "recommender": "mlp", "repeat_feature": True},
            "leave --repeat-feature out",
        ),
        ({"filter_sketch": True}, "leave --filter-sketch out"),
        (
            {"filter_seen": True},
            "filter_seen is for items predicted with loss softmax: leave --filter-seen out",
        ),
        ({"task": "implicit", "loss": "bpr", "filter_seen": True}, "leave --filter-seen out"),
        (
            {"task": "implicit", "repeat_feature": True, "filter_seen": True},
            "filter_seen is for data where items do not repeat, and repeat_feature is on: leave "
            "--filter-seen out, or add --no-repeat-feature",
        ),
        (  # a tenth of the events are repeats, so the feature is on by default
            {"task": "implicit", "filter_seen": True},
            "filter_seen is for data where items do not repeat, and repeat_feature is on",
        ),
        (
            {
                "task": "implicit",
                "repeat_feature": False,
                "filter_sketch": True,
                "filter_seen": True,
            },
            "filter_seen filters the items of the sketch with all others: leave --filter-sketch",
        ),
        ({"task": "implicit", "cosine": True}, "leave --cosine out"),
        ({"recommender": "gru", "cosine": True}, "leave --cosine out"),
        (
            {
                "task": "implicit",
                "recommender": "gru",
                "repeat_feature": True,
                "filter_sketch": True,
            },
            "repeat_feature and filter_sketch contradict each other",
        ),
        (
            {**SAMPLED_INNER_LOSS, "recency_decay": True},
            "leave --recency-decay out",
        ),
        ({**SAMPLED_INNER_LOSS, "repeat_feature": True}, "leave --repeat-feature out"),
        ({**SAMPLED_INNER_LOSS, "tie_embeddings": False}, "leave --no-tie-embeddings out"),
        (
            {"inner_loss": "linearised"},
            "inner_loss linearised is for items predicted by dot: leave --inner-loss out",
        ),
        (
            {"task": "implicit", "recommender": "mlp", "inner_loss": "linearised"},
            "leave --inner-loss out",
        ),
        (
            {"task": "implicit", "recommender": "gru", "inner_loss": "linearised"},
            "leave --inner-loss out",
        ),
        (
            {"task": "implicit", "loss": "bpr", "inner_loss": "linearised", "recency_decay": True},
            "leave --recency-decay out",
        ),
    ],
)
def test_unsupported_settings_are_refused(
    world: World, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        check(world(), TrainConfig.of(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.0, "discount": 1.0},
        {"policy": "last", "estimator": "reinforce"},  # not used by a static policy
        {**SAMPLED, "estimator": "reinforce", "credit": "discount"},
        {**SAMPLED, "estimator": "gumbel", "credit": "survival"},
        {"policy": "dips", "update_interval": 1, "every": 4},
        {"policy": "all", "user_batch": 2, "update_interval": 3},
        {"task": "implicit", "recommender": "sasrec", "repeat_feature": True, "negatives": 5},
        {
            "task": "implicit",
            "recommender": "gru",
            "filter_sketch": True,
            "cosine": True,
            "negatives": 5,
        },
        {"task": "implicit", "filter_sketch": True},
        *(
            {"task": "implicit", "repeat_feature": False, "filter_seen": True, **more}
            for more in (
                {"recommender": "dot"},
                {"inner_loss": "softmax"},
                {"inner_loss": "softmax", "negatives": 5},
                {"negatives": 5, "policy": "learned"},
                {"recommender": "gru"},
                {"recommender": "sasrec", "negatives": 5},
                {"recommender": "mlp"},
            )
        ),
        {"task": "implicit", "inner_loss": "linearised", "negatives": 5, "recency_decay": True},
        {
            "task": "implicit",
            "inner_loss": "linearised",
            "negatives": 5,
            "repeat_feature": True,
            "tie_embeddings": False,
        },
        {"task": "implicit", "inner_loss": "linearised", "loss": "bpr"},
        {"task": "implicit", "inner_loss": "softmax", "repeat_feature": True},
        {"inner_loss": "softmax"},  # as in the recipe of the paper, which is for any task
        {"task": "implicit", "recommender": "mlp", "filter_sketch": True, "loss": "bpr"},
        {
            "repeat_feature": False,
            "filter_sketch": False,
            "recency_decay": False,
            "tie_embeddings": True,
            "cosine": False,
        },
    ],
)
def test_supported_settings_pass(world: World, settings: dict[str, Any]) -> None:
    check(world(), TrainConfig.of(**settings))


def test_warmup_histories_cannot_train_a_policy(world: World) -> None:
    """A decision before the first prediction that counts leaves no trace to learn from."""
    data = world([5, 6])
    late = replace(data, warmup=np.array([0, 2]))
    check(late, TrainConfig.of(policy="last"))
    for settings in ({"policy": "learned"}, {"user_batch": 3}, {"update_interval": 1}):
        check(data, TrainConfig.of(**settings))
        with pytest.raises(ConfigError, match="first interactions are not predicted"):
            check(late, TrainConfig.of(**settings))


@pytest.mark.parametrize(
    ("settings", "processes", "sentence"),
    [
        ({}, 3, "3 processes share the users, and"),
        ({"policy": "learned", "estimator": "reinforce"}, 2, "train in one process"),
    ],
)
def test_unsupported_settings_of_several_processes_are_refused(
    world: World, settings: dict[str, Any], processes: int, sentence: str
) -> None:
    parts = [world([5, 6, 4]), world([5, 6])]
    config = TrainConfig.of(**settings)
    check_process_group(parts, config, 1)
    check_process_group(parts, TrainConfig.of(), 2)
    with pytest.raises(ConfigError, match=sentence):
        check_process_group(parts, config, processes)


def test_the_seed_and_the_fold_decide_the_split() -> None:
    data = stream(users=20, items=64, events=6)
    plain, other = (split(data, TrainConfig.of(seed=2, fold=fold, repeat=fold)) for fold in (0, 3))
    by_hand = data.split_users(0.6, 0.2, 0.2, seed=2)
    assert [p.user_rows.tolist() for p in plain] == [p.user_rows.tolist() for p in by_hand]
    assert not set(plain[2].user_rows) & set(other[2].user_rows)


def test_a_split_by_time_has_no_folds() -> None:
    data = stream(users=20, items=64, events=6)
    with pytest.raises(ConfigError, match="fold is 1: a split by time has no folds; leave --fold"):
        split(data, TrainConfig.of(split="time", fold=1))


def test_a_sketch_larger_than_most_histories_gets_one_warning(world: World) -> None:
    data = world([2, 3, 4, 9], items=12, explicit=True)
    with pytest.warns(DataWarning, match=r"K = 4 is at least the length of 75 % of the") as found:
        check(data, TrainConfig.of(policy="learned", size=4))
    assert len(found) == 1  # though the baselines have the same size
    check(data, TrainConfig.of(policy="all", size=4))
    check(data, TrainConfig.of(policy="last", size=2))


def test_a_recommender_needs_two_items(world: World) -> None:
    with pytest.raises(DataError, match="there is a single item, '0'"):
        check(world([5, 5, 5], items=1, explicit=True), TrainConfig())


@pytest.mark.parametrize("loss", ["bce", "cce"])
def test_classes_need_two_different_ratings(world: World, loss: str) -> None:
    data = world([9, 9, 9], items=12, explicit=True)
    assert data.rating is not None
    data = replace(data, rating=np.full_like(data.rating, 3.0))
    with pytest.raises(ConfigError, match=f"loss '{loss}' needs two different ratings"):
        check(data, TrainConfig.of(loss=loss))
    check(data, TrainConfig.of(loss="mse"))
