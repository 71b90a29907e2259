"""The comparison of starts: one table, in which only the policy differs."""

import csv
import json

import initial_policies

from dips.studies.run_directory import read_config


def test_one_table_holds_rules_starts_and_the_frozen_policy(tmp_path, capsys):
    what = ["--sizes", "3", "--folds", "2", "--users", "40", "--epochs", "2", "--rules", "last"]
    assert initial_policies.main(["planted", str(tmp_path), *what]) == 0
    with (tmp_path / "summary.csv").open() as file:
        rows = {row["policy"]: float(row["mean"]) for row in csv.DictReader(file)}
    assert set(rows) == {
        "last", "pretrained", "learned-pretrained", "learned-rule", "learned-last"
    }  # fmt: skip
    assert f"{rows['pretrained']:.4f}" in capsys.readouterr().out
    with (tmp_path / "paired.csv").open() as file:
        pairs = {(row["a"], row["b"]) for row in csv.DictReader(file)}
    assert ("learned-rule", "pretrained") in pairs or ("pretrained", "learned-rule") in pairs
    assert json.loads((tmp_path / "origin.json").read_text())["data"] == "planted"


def test_starts_differ_in_the_start_alone(tmp_path):
    what = ["--sizes", "3", "--folds", "1", "--users", "40", "--epochs", "1", "--rules", ""]
    assert initial_policies.main(["planted", str(tmp_path), *what]) == 0
    found = {}
    for start in ("pretrained", "rule", "last"):
        (run,) = (tmp_path / "runs" / start / "runs").iterdir()
        found[start] = read_config(run)
        assert found[start].pop("initial_policy") == start
    assert found["rule"] == found["last"] == found["pretrained"]
