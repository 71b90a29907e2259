"""Printed tables and sentences."""

import pytest

from dips.cli.screen import print_kept, print_saved, print_summary


@pytest.mark.parametrize(("splits", "said"), [(1, False), (2, True)])
def test_one_split_has_no_deviation(splits, said, capsys):
    row = {"policy": "last", "size": 4, "every": 1, "metric": "rmse", "mean": 0.9, "std": 0.1}
    print_summary([{**row, "n": splits}], "rmse", "test rmse")
    shown = capsys.readouterr().out
    assert "0.9000" in shown
    assert ("± 0.1000" in shown) == said


def test_a_kept_baseline_is_printed(capsys):
    row = {"policy": "learned", "size": 4, "every": 1, "seed": 0, "kept_policy": "learned"}
    print_kept([row, {**row, "every": 8, "seed": 1, "kept_policy": "frequent"}])
    assert capsys.readouterr().out == (
        "learned at 4 every 8, seed 1: the baseline frequent is kept: it is better on validation\n"
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
