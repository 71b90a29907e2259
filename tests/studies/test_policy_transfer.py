"""Who chose gets the credit; what is begun or finished with other settings is told apart."""

from __future__ import annotations

from typing import Any

import pytest

from dips.errors import ConfigError
from dips.evaluation.transfer import size_ratios
from dips.studies.compare import Plan
from dips.studies.policy_transfer import Result, choosing, reading, saved
from dips.training.config import TrainConfig


def _result(kept: list[str]) -> Result:
    """Two seeds of `learned` at size 2, whose choosers are given, and reservoir."""
    curves = {("learned", 2): 0.2, ("reservoir", 2): 0.1, ("reservoir", 4): 0.2}
    summary = [
        {"policy": policy, "size": size, "metric": "recall@20", "mean": mean}
        for (policy, size), mean in curves.items()
    ]
    rows: list[dict[str, Any]] = [
        {"policy": "learned", "size": 2, "seed": seed, "kept_policy": name}
        for seed, name in enumerate(kept)
    ]
    return Result({}, rows, summary, [], size_ratios(summary))


def test_who_learned_and_chose_is_named_alone() -> None:
    (row,) = saved(_result(["learned", "learned"]))
    assert row["sentence"] == "learned at 2 equals reservoir at 4: 50 % fewer"
    assert row["kept_policies"] == ["learned"]


def test_a_rival_that_chose_is_said() -> None:
    (row,) = saved(_result(["learned", "frequent"]))
    assert row["sentence"].endswith("50 % fewer (chosen by frequent, learned)")
    (row,) = saved(_result(["last", "last"]))
    assert row["sentence"].endswith("(chosen by last)")


def test_without_the_other_there_is_nothing_to_say() -> None:
    assert saved(_result(["learned"]), against="last") == []


def test_choosers_have_no_cosines() -> None:
    config = TrainConfig(filter_sketch=1, cosine=1, separate_input=0)
    plan = Plan(policies=["last"], sizes=[1], every=[1], seeds=[0], settings=lambda policy: config)
    assert choosing(plan).settings("last") == config.but(cosine=-1)


def test_readers_have_epochs_of_their_own() -> None:
    config = TrainConfig(epochs=3)
    assert reading(config, 0) == config
    assert reading(config, 5) == config.but(epochs=5)
    with pytest.raises(ConfigError, match="--reader-epochs is -2: it must be at least 0"):
        reading(config, -2)
