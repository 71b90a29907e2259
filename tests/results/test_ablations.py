"""Ablations: one thing changed at a time, and the same command goes on."""

import csv

import ablations
import pytest
from ablations import DEFAULT, main

SHORT = {"epochs": 1, "dim": 4, "queue": 3}


@pytest.fixture
def variants(monkeypatch):
    few = {DEFAULT: SHORT, ("policy", "last"): {**SHORT, "policy": "last"},
           ("ghosts", "none"): {**SHORT, "ghosts": 0}}  # fmt: skip
    monkeypatch.setattr(ablations, "VARIANTS", few)
    return few


def test_a_line_for_each_variant_and_what_is_there_is_kept(variants, tmp_path, monkeypatch, capsys):
    asked = ["world:0.5,0.5,25,3", str(tmp_path), "--size", "2", "--seeds", "2"]
    assert main([*asked, "--only", "policy"]) == 0
    with monkeypatch.context() as patch:
        taken = []
        real = ablations.trained
        patch.setattr(ablations, "trained", lambda *a: taken.append(a[1]) or real(*a))
        assert main(asked) == 0
    assert [flags.get("ghosts") for flags in taken] == [0]  # the others are there
    with (tmp_path / "ablations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == ["learned", "last", "none"]
    assert float(rows[0]["diff"]) == 0
    gap = float(rows[1]["test"]) - float(rows[0]["test"])
    assert float(rows[1]["diff"]) == pytest.approx(gap, abs=0.02)  # pooled, and mean of splits
    assert float(rows[1]["low"]) <= float(rows[1]["diff"]) <= float(rows[1]["high"])
    assert "Traceback" not in capsys.readouterr().err


def test_where_time_is_over_it_says_so(variants, tmp_path):
    assert main(["world:0.5,0.5,25,3", str(tmp_path), "--size", "2", "--max-seconds", "0"]) == 130
    assert not list((tmp_path / "variants").iterdir())
