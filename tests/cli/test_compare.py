import csv
import json

import pytest

from dips.cli.compare import show
from dips.cli.settings import numbers
from dips.errors import ConfigError
from dips.studies.compare import ComparisonTable

FAST = ("--epochs", 1, "--dim", 6, "--batch-size", 256, "--device", "cpu")
WHAT = ("--policies", "last,reservoir,mix:2", "--sizes", "2,3", "--every", "1,2", "--folds", 2)


@pytest.fixture(scope="module")
def results(worlds, tmp_path_factory):
    """Return a finished comparison and its output."""
    from contextlib import redirect_stdout
    from io import StringIO

    from dips.cli.main import main

    out, screen = tmp_path_factory.mktemp("compare") / "results", StringIO()
    arguments = ["compare", worlds["explicit"], "--out", out, *WHAT, *FAST, "--json"]
    with redirect_stdout(screen), pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert left.value.code == 0
    return out, screen.getvalue()


def test_json(results):
    lines = results[1].splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0], parse_constant=pytest.fail)
    assert list(found) == ["rows", "summary", "paired", "best_rules", "verdict"]
    cell = ["policy", "size", "every", "fold", "repeat"]
    assert list(found["rows"][0]) == [*cell, "kept_policy", "valid", "test"]
    summary = ["policy", "size", "every", "metric", "mean", "std", "n"]
    assert list(found["summary"][0]) == summary
    paired = ["a", "b", "size", "every", "metric", "diff", "low", "high", "p", "folds"]
    assert list(found["paired"][0]) == paired
    assert len(found["rows"]) == 2 * (2 * 2 + 2 * 2 + 2)  # mix:2 does not fit at size 2
    assert {row["fold"] for row in found["rows"]} == {0, 1}
    assert all(row["n"] == 2 for row in found["summary"])
    assert all(len(row["folds"]) == 2 for row in found["paired"])
    assert {(row["size"], row["every"], row["fold"]) for row in found["best_rules"]} == {
        (size, every, fold) for size in (2, 3) for every in (1, 2) for fold in (0, 1)
    }
    assert sum(row["policy"] == "best-rule" for row in found["summary"]) == 4
    assert found["verdict"].endswith("preliminary: 2 of 5 folds")
    assert len(found["paired"]) == 2 * 3 + 2  # three pairs at size 3, one at size 2


def test_files(results):
    out, _ = results
    files = {path.name for path in out.iterdir()}
    assert files == {
        "rows.csv",
        "summary.csv",
        "paired.csv",
        "best_rules.csv",
        "figure.png",
        "runs",
        "origin.json",
    }
    with (out / "rows.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 20
    assert len(list((out / "runs").iterdir())) == 20
    assert (out / "figure.png").stat().st_size > 5000
    assert not list(out.rglob("*.part"))


def test_tables_are_printed(results, worlds, command):
    """A second call trains nothing and prints the tables."""
    out, _ = results
    found = command("compare", worlds["explicit"], "--out", out, *WHAT, *FAST)
    assert found.code == 0, found.err
    text = " ".join(found.out.split())
    for words in (
        "test rmse on",
        "K=2",
        "K=3 every 2",
        "difference to last",
        "(Holm)",
        "of 2)",
        "best-rule",
        "best rule on validation at K=3 every 2: ",
        "±",
        "figure.png",
        "verdict: ",
    ):
        assert words in text
    assert "epochs of runs" not in found.err


def test_a_kept_baseline_is_not_counted_as_learned(capsys, tmp_path):
    cells = {"last": (0.94, "last"), "learned": (0.9, "frequent")}
    rows, summary = [], []
    for policy, (mean, kept) in cells.items():
        cell = {"policy": policy, "size": 4, "every": 1}
        rows.append({**cell, "fold": 0, "repeat": 0, "kept_policy": kept})
        summary.append({**cell, "metric": "rmse", "mean": mean, "std": 0.0, "n": 1})
    pair = {"a": "last", "b": "learned", "size": 4, "every": 1, "metric": "rmse", "diff": 0.04,
            "low": 0.03, "high": 0.05, "p": 0.001, "folds": [0.04]}  # fmt: skip
    table = ComparisonTable(rows, summary, [pair])
    show(table, list(cells), "toy", tmp_path)
    shown = capsys.readouterr().out
    assert (
        "learned at 4, fold 0: the baseline frequent is kept: it is better on validation" in shown
    )
    said = (
        "frequent was kept in 1 of 1 runs of learned; frequent is better than last in "
        "the one cell, by 4.3 %"
    )
    assert f"verdict: {said}: use frequent" in shown
    assert table.to_dict()["verdict"].startswith(said)


def test_seed_and_repeats(worlds, command, tmp_path):
    found = command(
        "compare", worlds["implicit"], "--out", tmp_path, "--policies", "last", "--sizes", "2",
        "--folds", 1, "--seed", 7, "--repeats", 2, "--json", *FAST,
    )  # fmt: skip
    assert [(row["fold"], row["repeat"]) for row in found.json["rows"]] == [(0, 0), (0, 1)]
    one = json.loads((tmp_path / "runs" / "last-k2-t1-f0-r1" / "config.json").read_text())
    assert (one["asked"]["seed"], one["asked"]["repeat"]) == (7, 1)
    assert {row["metric"] for row in found.json["summary"]} == {"recall@20", "mrr@20", "ndcg@20"}
    assert found.json["paired"] == []
    assert "training: 2 of 2 epochs of runs" in found.err


def test_tuning(worlds, command, tmp_path):
    arguments = (
        "compare", worlds["explicit"], "--out", tmp_path, "--policies", "last,reservoir",
        "--sizes", "2,3", "--folds", 1, "--tune", 2, "--tune-once", "--json", *FAST,
    )  # fmt: skip
    found = command(*arguments)
    assert found.code == 0, found.err
    trials = json.loads((tmp_path / "tuning.json").read_text())["trials"]
    assert len(trials) == 2 * 2  # once for each policy
    assert "tuning: 4 of 4 epochs of runs" in found.err
    assert command(*arguments).json == found.json


def test_other_settings_in_the_same_directory_are_refused(results, worlds, command):
    out, _ = results
    found = command("compare", worlds["explicit"], "--out", out, *WHAT, *FAST, "--inner-lr", 0.2)
    assert found.code == 2
    assert "was made with other settings (inner_lr): give --out another directory" in found.err
    assert len(found.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--policies", "last,last"], "--policies 'last,last': give each policy once"),
        (["--policies", ","], "--policies ',': give each policy once"),
        (["--policies", "last,newest"], "unknown policy 'newest'"),
        (["--policies", "mix:x"], "policy 'mix:x': the number of newest must be a number"),
        (["--policies", "mix:9"], "mix:9 leaves no slot to sample at size 4"),
        (["--policies", "last", "--sizes", "2,x"], "--sizes '2,x': give whole numbers"),
        (["--policies", "last", "--sizes", "0"], "size is 0: it must be at least 1"),
        (["--policies", "last", "--every", "0"], "every is 0: it must be at least 1"),
        (["--policies", "last", "--folds", "0"], "folds is 0: it must be between 1 and 5"),
        (["--policies", "last", "--folds", "6"], "folds is 6: it must be between 1 and 5"),
        (["--policies", "last", "--repeats", "0"], "repeats is 0: it must be at least 1"),
        (
            ["--policies", "last", "--split", "time", "--folds", "5"],
            "folds is 5: a split by time has no folds; give --folds 1",
        ),
        (["--policies", "last", "--loss", "softmax"], "loss 'softmax' does not fit the task"),
    ],
)
def test_bad_requests_write_nothing(arguments, reason, command, worlds, tmp_path):
    out = tmp_path / "results"
    found = command("compare", worlds["explicit"], "--out", out, *arguments, *FAST)
    assert found.code == 2
    assert reason in found.err
    assert found.err.startswith("dips: ")
    assert len(found.err.splitlines()) == 1
    assert not out.exists()


def test_seeds_is_an_unknown_option_now(command, worlds, tmp_path):
    found = command(
        "compare", worlds["explicit"], "--out", tmp_path, "--policies", "last", "--seeds", 2
    )
    assert found.code == 2
    assert "--seeds" in found.err


def test_numbers():
    assert numbers("sizes", "2,4,8") == (2, 4, 8)
    with pytest.raises(ConfigError, match="--sizes '4,': give whole numbers"):
        numbers("sizes", "4,")
