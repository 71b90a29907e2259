"""The rule that decides whether a policy is better: each condition by a hand-made case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dips.evaluation.significance import (
    agreeing_folds,
    best_policies,
    folds_in_words,
    is_significant,
    t_interval_excludes_zero,
)

GAIN = {"diff": -0.03, "low": -0.04, "high": -0.02, "p": 0.01}
FOLDS = [-0.02, -0.03, -0.04, -0.03, -0.03]


def pair(**changes: Any) -> dict[str, Any]:
    return {**GAIN, "folds": FOLDS, **changes}


@pytest.mark.parametrize("sign", [1, -1])
def test_all_conditions_hold(sign: int) -> None:
    ends = sorted((sign * GAIN["low"], sign * GAIN["high"]))
    folds = [sign * one for one in FOLDS]
    assert is_significant(pair(diff=sign * -0.03, low=ends[0], high=ends[1], folds=folds))


@pytest.mark.parametrize(
    "changes",
    [
        {"high": 0.001},
        {"low": -0.001, "high": 0.001},
        {"p": 0.05},
        {"folds": [-0.02, -0.03, -0.04, -0.03, 0.001]},
        {"folds": [-0.02, -0.03, -0.04, -0.03, 0.0]},
        {"folds": [-0.02, 0.01]},
        {"folds": [0.01]},
        {"folds": [-0.001, -0.001, -0.001, -0.002, -0.05]},  # one fold has all of the gain
    ],
)
def test_each_condition_is_needed(changes: dict[str, Any]) -> None:
    assert not is_significant(pair(**changes))


def test_fewer_folds_have_no_t_interval() -> None:
    assert is_significant(pair(folds=[-0.001, -0.05]))
    assert is_significant(pair(folds=[-0.03]))


def test_results_of_version_0_1_have_no_folds() -> None:
    assert is_significant(GAIN)
    assert not is_significant({**GAIN, "p": 0.2})


def test_the_t_interval_equals_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        values = rng.normal(0.8, 1.0, 5)
        expected = stats.ttest_1samp(values, 0.0).pvalue < 0.05
        assert t_interval_excludes_zero(values.tolist()) == expected


def test_folds_that_agree_are_counted_in_words() -> None:
    assert agreeing_folds(pair(folds=[-1.0, 1.0, 0.0, -1.0, -2.0])) == 3
    assert folds_in_words(pair(folds=[-1.0, 1.0, 0.0, -1.0, -2.0])) == "3 of 5 folds"
    assert folds_in_words(pair(folds=[-1.0])) == "1 of 1 fold"


def test_the_best_policies_are_those_that_no_test_separates() -> None:
    cell = {"size": 4, "every": 1, "metric": "rmse"}
    means = {"a": 0.90, "b": 0.91, "c": 0.95, "d": 0.90, "all": 0.5}
    summary = [{**cell, "policy": name, "mean": mean} for name, mean in means.items()]
    summary.append({**cell, "size": 8, "policy": "e", "mean": 0.1})
    paired = [
        {**cell, "a": "a", "b": "b", **pair(p=0.4)},
        {**cell, "a": "c", "b": "a", **pair()},
        {**cell, "a": "b", "b": "c", **pair(p=0.4)},
        {**cell, "a": "all", "b": "a", **pair(p=0.4)},
    ]
    assert best_policies(summary, paired, "rmse", 4, 1) == {"a", "b", "d"}
    assert best_policies(summary, [], "rmse", 4, 1) == {"a", "d"}
    assert best_policies(summary, paired, "rmse", 16, 1) == set()
