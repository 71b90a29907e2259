"""Tuning of the inner learning rate: chosen on validation, scored on test."""

import csv
import json

import inner_rates
import pytest


def row(fold, factor, valid, test, metric="rmse"):
    return {
        "policy": "last", "size": 4, "fold": fold, "factor": factor, "inner_lr": factor / 10,
        "metric": metric, "valid": valid, "test": test,
    }  # fmt: skip


def test_the_factor_is_chosen_on_validation():
    rows = [
        row(0, 0.5, 0.98, 1.02), row(0, 1.0, 1.00, 1.00), row(0, 2.0, 0.99, 0.90),
        row(1, 0.5, 1.10, 0.50), row(1, 1.0, 1.00, 1.00), row(1, 2.0, 1.20, 0.50),
    ]  # fmt: skip
    [found] = inner_rates.tuned(rows)
    assert (found["default"], found["tuned"], found["folds"]) == (1.0, 1.01, "0.5 1")
    assert found["gain_percent"] == pytest.approx(-1.0)  # the mean of -2 % and 0
    [other] = inner_rates.tuned([{**one, "metric": "recall@20"} for one in rows])
    assert (other["folds"], other["gain_percent"]) == ("1 2", -25.0)


def test_the_runs_differ_in_the_inner_rate_alone(tmp_path, capsys):
    what = ["--sizes", "3", "--folds", "2", "--users", "40", "--factors", "0.5,1"]
    assert inner_rates.main(["planted", str(tmp_path), *what]) == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    rates = {(found["fold"], found["factor"]): float(found["inner_lr"]) for found in rows}
    assert len(rates) == 4
    assert rates["0", "0.5"] == rates["0", "1.0"] / 2
    assert len({found["test"] for found in rows}) == 4
    assert "gain_percent" in capsys.readouterr().out
    assert json.loads((tmp_path / "origin.json").read_text())["data"] == "planted"
    assert len((tmp_path / "tuned.csv").read_text().splitlines()) == 2
