"""Ablations: one thing changed at a time, and the same command goes on."""

import csv

import ablations
import pytest
from ablations import DEFAULT, asked_for, main

from dips.training.recipes import build_config

SHORT = {"dim": 4, "queue": 3}
ASKED = ["world:0.5,0.5,25,3", "--size", "2", "--epochs", "1"]


@pytest.fixture
def variants(monkeypatch):
    few = {DEFAULT: SHORT, ("policy", "last"): {**SHORT, "policy": "last"},
           ("dropped_candidates", "none"): {**SHORT, "dropped_candidates": 0}}  # fmt: skip
    monkeypatch.setattr(ablations, "VARIANTS", few)
    return few


def read(out):
    with (out / "ablations.csv").open() as file:
        return list(csv.DictReader(file))


def watched(monkeypatch):
    """The settings of all that is trained from now on."""
    taken, real = [], ablations.run
    monkeypatch.setattr(
        ablations, "run", lambda jobs, **rest: taken.append(jobs[0][1]) or real(jobs, **rest)
    )
    return taken


def test_a_line_for_each_variant_and_what_is_there_is_kept(variants, tmp_path, monkeypatch, capsys):
    asked = [*ASKED, str(tmp_path), "--seeds", "2"]
    assert main([*asked, "--only", "policy"]) == 0
    taken = watched(monkeypatch)
    assert main(asked) == 0
    assert [config.dropped_candidates for config in taken] == [0]  # the others are there
    rows = read(tmp_path)
    assert [row["variant"] for row in rows] == ["learned", "last", "none"]
    assert float(rows[0]["diff"]) == 0
    gap = float(rows[1]["test"]) - float(rows[0]["test"])
    assert float(rows[1]["diff"]) == pytest.approx(gap, abs=0.02)  # pooled, and mean of splits
    assert float(rows[1]["low"]) <= float(rows[1]["diff"]) <= float(rows[1]["high"])
    assert "Traceback" not in capsys.readouterr().err


def test_where_time_is_over_it_says_so(variants, tmp_path):
    assert main([*ASKED, str(tmp_path), "--max-seconds", "0"]) == 130
    assert not list((tmp_path / "variants").iterdir())


def test_in_turn_has_twice_the_epochs_and_what_is_compared_can_differ(tmp_path, monkeypatch):
    few = {DEFAULT: SHORT, ("teaching", "in turn"): SHORT, ("size", "K = 2"): SHORT,
           ("size", "last with K = 2"): {**SHORT, "policy": "last"}}  # fmt: skip
    monkeypatch.setattr(ablations, "VARIANTS", few)
    taken = watched(monkeypatch)
    asked = [*ASKED, str(tmp_path), "--seeds", "1", "--only", "teaching,size: last with K = 2"]
    assert main(asked) == 0
    assert [config.epochs for config in taken] == [1, 2, 1]
    line = read(tmp_path)[-1]
    assert (line["variant"], line["against"], line["diff"]) == ("last with K = 2", "K = 2", "")
    assert main([*asked[:-1], "size"]) == 0
    line = read(tmp_path)[-1]
    assert float(line["diff"]) != 0


def test_what_is_asked_for_comes_in_that_order():
    found = asked_for("queue,policy: last")
    assert found[0] == DEFAULT
    assert found[-1] == ("policy", "last")
    assert {theme for theme, _ in found[1:-1]} == {"queue"}
    assert asked_for("") == list(ablations.VARIANTS)
    with pytest.raises(SystemExit, match="no theme 'quue': there are default, policy"):
        asked_for("quue")


def test_what_the_data_cannot_have_is_left_out(tmp_path, monkeypatch, capsys):
    few = {DEFAULT: SHORT, ("side", "odd"): {**SHORT, "side": "colour"}}
    monkeypatch.setattr(ablations, "VARIANTS", few)
    assert main([*ASKED, str(tmp_path), "--seeds", "1"]) == 0
    assert "side: odd is left out" in capsys.readouterr().err
    assert [line["variant"] for line in read(tmp_path)] == ["learned"]


def test_settings_of_all_variants_are_known():
    for flags in ablations.VARIANTS.values():
        build_config("default", flags={"policy": "learned", **flags})
