"""Estimators by name, and the combinations that they support."""

from __future__ import annotations

import itertools

import pytest

from dips.credit.registry import CREDITS
from dips.errors import ConfigError
from dips.training.estimators import ESTIMATORS, check_combination, make_estimator


def test_supported_combinations() -> None:
    for credit, periods, selection in itertools.product(
        CREDITS, [(1,), (4,), (1, 2)], ["greedy", "sampled"]
    ):
        check_combination("straight-through", credit, periods, selection)
    for estimator, credit in itertools.product(ESTIMATORS, ["identity", "discount"]):
        check_combination(estimator, credit, (1, 1), "sampled")
    check_combination("gumbel", "survival", (1,), "sampled")


@pytest.mark.parametrize("name", ["gumbel", "reinforce"])
def test_unsupported_combinations_name_the_fix(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' works online only: set every = 1"):
        check_combination(name, "identity", (1, 2), "sampled")
    with pytest.raises(
        ConfigError, match=f"'{name}' needs sampled choices: set selection = sampled"
    ):
        check_combination(name, "identity", (1,), "greedy")


@pytest.mark.parametrize("credit", ["survival", "replay"])
def test_reinforce_needs_credit_of_losses(credit: str) -> None:
    with pytest.raises(ConfigError, match=f"'{credit}' needs their gradients: set credit = id"):
        check_combination("reinforce", credit, (1,), "sampled")


def test_unknown_estimator() -> None:
    with pytest.raises(ConfigError, match="unknown estimator 'magic': choose one of straight"):
        make_estimator("magic")
