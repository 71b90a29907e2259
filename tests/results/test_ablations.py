"""Ablations: one change at a time; the same command resumes."""

import csv

import ablations
import pytest
from ablations import DEFAULT, main, select_variants

from dips.training.recipes import build_config

SHORT = {"dim": 4, "queue": 3}
ARGUMENTS = ["world:0.5,0.5,25,3", "--size", "2", "--epochs", "1"]


@pytest.fixture
def variants(monkeypatch):
    few = {DEFAULT: SHORT, ("policy", "last"): {**SHORT, "policy": "last"},
           ("dropped_candidates", "none"): {**SHORT, "dropped_candidates": 0}}  # fmt: skip
    monkeypatch.setattr(ablations, "VARIANTS", few)
    return few


def read(out):
    with (out / "ablations.csv").open() as file:
        return list(csv.DictReader(file))


def record_runs(monkeypatch):
    """Record the settings of all later runs."""
    taken, real = [], ablations.train_runs
    monkeypatch.setattr(
        ablations, "train_runs", lambda jobs, **rest: taken.append(jobs[0][1]) or real(jobs, **rest)
    )
    return taken


def test_one_line_per_variant_and_finished_variants_are_kept(
    variants, tmp_path, monkeypatch, capsys
):
    arguments = [*ARGUMENTS, str(tmp_path), "--seeds", "2"]
    assert main([*arguments, "--only", "policy"]) == 0
    taken = record_runs(monkeypatch)
    assert main(arguments) == 0
    assert [config.policy_training.dropped_candidates for config in taken] == [
        0
    ]  # the others are there
    rows = read(tmp_path)
    assert [row["variant"] for row in rows] == ["learned", "last", "none"]
    assert float(rows[0]["diff"]) == 0
    gap = float(rows[1]["test"]) - float(rows[0]["test"])
    assert float(rows[1]["diff"]) == pytest.approx(gap, abs=0.02)  # pooled, and mean of splits
    assert float(rows[1]["low"]) <= float(rows[1]["diff"]) <= float(rows[1]["high"])
    assert "Traceback" not in capsys.readouterr().err


def test_the_time_limit_is_reported(variants, tmp_path):
    assert main([*ARGUMENTS, str(tmp_path), "--max-seconds", "0"]) == 130
    assert not list((tmp_path / "variants").iterdir())


def test_alternating_updates_have_twice_the_epochs(tmp_path, monkeypatch):
    short = {**SHORT, "initial_policy": "last"}
    few = {DEFAULT: short, ("users", "alternating updates"): short, ("size", "K = 2"): short,
           ("size", "last with K = 2"): {**short, "policy": "last"}}  # fmt: skip
    monkeypatch.setattr(ablations, "VARIANTS", few)
    taken = record_runs(monkeypatch)
    arguments = [*ARGUMENTS, str(tmp_path), "--seeds", "1", "--only", "users,size: last with K = 2"]
    assert main(arguments) == 0
    assert [config.training.epochs for config in taken] == [1, 2, 1]
    line = read(tmp_path)[-1]
    assert (line["variant"], line["against"], line["diff"]) == ("last with K = 2", "K = 2", "")
    assert main([*arguments[:-1], "size"]) == 0
    line = read(tmp_path)[-1]
    assert float(line["diff"]) == 0  # on equal terms the first epoch of `learned` is `last`


def test_variants_keep_the_requested_order():
    found = select_variants("queue,policy: last")
    assert found[0] == DEFAULT
    assert found[-1] == ("policy", "last")
    assert {theme for theme, _ in found[1:-1]} == {"queue"}
    assert select_variants("") == list(ablations.VARIANTS)
    with pytest.raises(SystemExit, match="no theme 'quue': there are default, policy"):
        select_variants("quue")


def test_variants_that_the_data_does_not_support_are_left_out(tmp_path, monkeypatch, capsys):
    few = {DEFAULT: SHORT, ("side", "odd"): {**SHORT, "side": ("colour",)}}
    monkeypatch.setattr(ablations, "VARIANTS", few)
    assert main([*ARGUMENTS, str(tmp_path), "--seeds", "1"]) == 0
    assert "side: odd is left out" in capsys.readouterr().err
    assert [line["variant"] for line in read(tmp_path)] == ["learned"]


def test_settings_of_all_variants_are_known():
    for flags in ablations.VARIANTS.values():
        build_config("default", flags={"policy": "learned", **flags})
