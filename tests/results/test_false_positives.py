"""The rule is checked where there is no difference: simulated, and by training twice."""

import numpy as np
import pytest
from false_positives import RULES, main, rates, simulated_table, training_noise

OVER_USERS, SAME_SIGN, RULE = RULES.values()


def tables(ratio, common=0.0, pairs=1, count=3000):
    rng = np.random.default_rng(0)
    return [simulated_table(rng, pairs, ratio, common) for _ in range(count)]


def test_without_training_noise_users_alone_have_the_nominal_rate():
    assert rates(tables(0.0), OVER_USERS)[0] == pytest.approx(0.05, abs=0.015)


def test_holm_holds_the_rate_of_a_whole_table():
    each, any_pair = rates(tables(0.0, pairs=20, count=1000), OVER_USERS)
    assert any_pair == pytest.approx(0.05, abs=0.03)
    assert each < 0.01


def test_training_noise_breaks_the_interval_over_users_and_not_the_rule():
    noisy = tables(4.0)
    assert rates(noisy, OVER_USERS)[0] > 0.5
    assert rates(noisy, SAME_SIGN)[0] == pytest.approx(2 / 2**5, abs=0.015)
    assert rates(noisy, RULE)[0] < 0.05


def test_noise_that_all_folds_share_is_not_seen():
    assert rates(tables(4.0, common=0.3), RULE)[0] > 0.1


def test_the_training_noise_is_recovered():
    rows = [rows[0] for rows in tables(2.0, common=0.25, count=6000)]
    noise, correlation = training_noise(rows)
    assert noise == pytest.approx(2.0, abs=0.1)
    assert correlation == pytest.approx(4 * 0.25 / (1 + 4), abs=0.03)


def test_both_commands_print_tables(capsys, tmp_path):
    assert main(["simulate", "--tables", "10"]) == 0
    assert capsys.readouterr().out.count("\n") == 16
    planted = ["train", "planted", str(tmp_path), "--repeats", "4", "--epochs", "1", "--size", "2"]
    assert main(planted) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in shown[2:]] == ["2", "6", "1", "1"]
