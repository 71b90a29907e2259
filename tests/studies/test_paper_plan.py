import pytest

from dips.errors import ConfigError
from dips.studies.paper_plan import FULL, QUICK


def test_folds_and_settings_that_are_given_come_first():
    assert QUICK.but(None, 0, {}) == QUICK
    found = QUICK.but(2, 7, {"epochs": 1, "device": "cpu"})
    assert (found.folds, found.seed) == (2, 7)
    assert found.settings == {**QUICK.settings, "epochs": 1, "device": "cpu"}
    for folds in (0, 6):
        with pytest.raises(ConfigError, match=f"folds is {folds}: it must be between 1 and 5"):
            QUICK.but(folds, 0, {})


def test_the_reduced_plan_trains_the_policy():
    """It waits at first and rests at the end; in a small version something must be left."""
    learning = QUICK.settings["epochs"] - 1 - QUICK.settings["policy_freeze_epochs"]
    assert learning >= 2


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
def test_plans_have_the_runs_that_later_stages_need(plan):
    compared = plan.grids["compare"]
    assert {"dips", "learned"} <= set(compared.policies)
    assert 4 in compared.sizes
    assert 1 in compared.every
    assert 0 in plan.grids["session"].sizes
