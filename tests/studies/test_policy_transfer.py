"""Savings name the kept policies; source policies and target models have own settings."""

from __future__ import annotations

from typing import Any

import pytest

from dips.errors import ConfigError
from dips.evaluation.transfer import size_ratios
from dips.studies.compare import ComparisonPlan
from dips.studies.policy_transfer import TransferResult, largest_savings, source_plan, target_config
from dips.training.config import TrainConfig


def _result(kept: list[str]) -> TransferResult:
    """Return a result with two seeds of `learned` with the given kept policies, and reservoir."""
    curves = {("learned", 2): 0.2, ("reservoir", 2): 0.1, ("reservoir", 4): 0.2}
    summary = [
        {"policy": policy, "size": size, "metric": "recall@20", "mean": mean}
        for (policy, size), mean in curves.items()
    ]
    rows: list[dict[str, Any]] = [
        {"policy": "learned", "size": 2, "fold": seed, "kept_policy": name}
        for seed, name in enumerate(kept)
    ]
    return TransferResult({}, rows, summary, [], size_ratios(summary))


def test_a_kept_policy_is_named_without_remark() -> None:
    (row,) = largest_savings(_result(["learned", "learned"]))
    assert row["sentence"] == "learned at 2 equals reservoir at 4: 50 % fewer"
    assert row["kept_policies"] == ["learned"]


def test_a_kept_baseline_is_named() -> None:
    (row,) = largest_savings(_result(["learned", "frequent"]))
    assert row["sentence"].endswith("50 % fewer (kept: frequent, learned)")
    (row,) = largest_savings(_result(["last", "last"]))
    assert row["sentence"].endswith("(kept: last)")


def test_without_the_reference_policy_there_are_no_savings() -> None:
    assert largest_savings(_result(["learned"]), against="last") == []


def test_source_policies_have_no_cosine_scores() -> None:
    config = TrainConfig.of(filter_sketch=True, cosine=True, tie_embeddings=True)
    plan = ComparisonPlan(
        policies=["last"], sizes=[1], every=[1], folds=1, settings=lambda policy: config
    )
    assert source_plan(plan).settings("last") == config.but(cosine=None)


def test_target_models_have_their_own_epochs() -> None:
    config = TrainConfig.of(epochs=3)
    assert target_config(config, 0) == config
    assert target_config(config, 5) == config.but(epochs=5)
    with pytest.raises(ConfigError, match="--target-epochs is -2: it must be at least 0"):
        target_config(config, -2)
