"""Printed tables and sentences."""

import pytest

from dips.cli.screen import (
    print_best_rules,
    print_kept,
    print_pairs,
    print_saved,
    print_summary,
)


@pytest.mark.parametrize(("splits", "said"), [(1, False), (2, True)])
def test_one_split_has_no_deviation(splits, said, capsys):
    row = {"policy": "last", "size": 4, "every": 1, "metric": "rmse", "mean": 0.9, "std": 0.1}
    print_summary([{**row, "n": splits}], "rmse", "test rmse")
    shown = capsys.readouterr().out
    assert "0.9000" in shown
    assert ("± 0.1000" in shown) == said


def test_a_kept_baseline_is_printed(capsys):
    row = {"policy": "learned", "size": 4, "every": 1, "fold": 0, "kept_policy": "learned"}
    other = {**row, "every": 8, "fold": 1, "kept_policy": "frequent"}
    print_kept([{**row, "repeat": 0}, {**other, "repeat": 0}, {**other, "repeat": 2}])
    assert capsys.readouterr().out == (
        "learned at 4 every 8, fold 1: the baseline frequent is kept: it is better on validation\n"
        "learned at 4 every 8, fold 1, repeat 2: the baseline frequent is kept: it is better on "
        "validation\n"
    )


@pytest.mark.parametrize(
    ("metric", "against", "gain", "difference"),
    [
        ("rmse", "last", "+2.0 %", "-0.0100"),
        ("rmse", "learned", "-2.0 %", "+0.0100"),
        ("recall@20", "last", "-2.0 %", "-0.0100"),
    ],
)
def test_a_gain_is_printed_with_the_folds_that_agree(metric, against, gain, difference, capsys):
    cell = {"size": 4, "every": 1, "metric": metric}
    summary = [{**cell, "policy": name, "mean": 0.5} for name in ("learned", "last")]
    pair = {**cell, "a": "learned", "b": "last", "diff": -0.01, "low": -0.02, "high": 0.001,
            "p": 0.2, "folds": [-0.01, -0.02, 0.01, -0.01, -0.02]}  # fmt: skip
    print_pairs(summary, [pair], metric, against)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"4, 1 {gain} (4 of 5) {difference}" in shown


def test_significant_gains_and_undecided_bests_are_bold(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    cell = {"size": 4, "every": 1, "metric": "rmse"}
    means = {"a": 0.7, "b": 0.8, "c": 0.9}
    summary = [
        {**cell, "policy": name, "mean": mean, "std": 0.0, "n": 1} for name, mean in means.items()
    ]
    gain = {"diff": -0.1, "low": -0.2, "high": -0.05, "p": 0.01, "folds": [-0.1]}
    paired = [
        {**cell, "a": "a", "b": "b", **gain, "p": 0.3},
        {**cell, "a": "a", "b": "c", **gain},
    ]
    print_summary(summary, "rmse", "test", paired)
    shown = capsys.readouterr().out
    assert ["\x1b[1m" + f"{mean:.4f}" in shown for mean in means.values()] == [True, True, False]
    print_pairs(summary, paired, "rmse", "c")
    assert "\x1b[1m+11.1 % (1 of 1)" in capsys.readouterr().out
    print_pairs(summary, paired, "rmse", "b")
    assert "\x1b[1m+12.5 %" not in capsys.readouterr().out


def test_the_best_rules_are_printed(capsys):
    chosen = ["last", "hardest", "last"]
    rows = [{"size": 4, "every": 2, "fold": f, "policy": name} for f, name in enumerate(chosen)]
    print_best_rules(rows)
    assert capsys.readouterr().out == (
        "best rule on validation at K=4 every 2: last in 2, hardest in 1 of 3 folds\n"
    )


def test_a_policy_that_is_never_as_good_has_no_saving(capsys):
    saved = [
        {"metric": "recall@20", "bound": "below", "sentence": "last is never as good"},
        {"metric": "recall@20", "bound": "", "sentence": "learned at 2 equals reservoir at 4"},
        {"metric": "ndcg@20", "bound": "", "sentence": "not asked for"},
    ]
    print_saved({"saved": saved, "paper": {"claim": "half"}}, ["recall@20"])
    assert capsys.readouterr().out.splitlines() == [
        "recall@20: last is never as good",
        "recall@20: at best learned at 2 equals reservoir at 4",
        "the paper: half",
    ]
