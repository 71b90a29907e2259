"""Reading result directories, and errors for damaged ones."""

import csv

import pytest

from dips.errors import RunError
from dips.report.results import read_results
from tests.report.fixtures import (
    write_comparison,
    write_experiment,
    write_gradients,
    write_run,
    write_table,
)


def test_all_results_are_found(tmp_path):
    write_comparison(tmp_path / "a" / "compare")
    write_experiment(tmp_path / "a" / "transfer", "transfer")
    write_run(tmp_path / "run")
    write_gradients(tmp_path / "run")
    found = read_results([tmp_path / "a", tmp_path / "run"])
    (comparison,) = found.comparisons
    assert (comparison.name, comparison.data, len(comparison.runs)) == ("compare", "ml-1m", 2)
    assert comparison.origin["environment"] == {"torch": "2.13"}
    (experiment,) = found.experiments
    assert (experiment.kind, experiment.origin["command"]) == ("transfer", "dips transfer toy")
    (run,) = found.runs
    assert run.gradients["steps"] == 5
    assert [line["epoch"] for line in run.history] == [1, 2]


def test_transfer_comes_before_sessions(tmp_path):
    for kind in ("session", "transfer"):
        write_experiment(tmp_path / kind, kind)
    kinds = [experiment.kind for experiment in read_results([tmp_path]).experiments]
    assert kinds == ["transfer", "session"]


def test_numbers_are_converted_and_common_shifts_are_removed(tmp_path):
    (comparison,) = read_results([write_comparison(tmp_path / "c")]).comparisons
    first = comparison.summary[0]
    assert (first["policy"], first["size"], first["mean"], first["std"]) == (
        "learned", 2, 0.95, 0.01,
    )  # fmt: skip
    assert all(row["spread"] == pytest.approx(0, abs=1e-9) for row in comparison.summary)


def test_differences_of_folds_and_best_rules_are_read(tmp_path):
    (comparison,) = read_results([write_comparison(tmp_path / "c")]).comparisons
    assert comparison.paired[0]["folds"] == [-0.0079, -0.0121]
    assert comparison.best_rules[1] == {"size": 2, "every": 1, "fold": 1, "policy": "last"}


def test_results_of_version_0_1_have_seeds_and_no_folds(tmp_path):
    place = write_comparison(tmp_path / "c")
    for name, drop in (("rows", ["repeat"]), ("paired", ["folds"])):
        with (place / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        kept = [{key: row[key] for key in row if key not in drop} for row in rows]
        write_table(
            place / f"{name}.csv",
            [{"seed" if key == "fold" else key: row[key] for key in row} for row in kept],
        )
    (place / "best_rules.csv").unlink()
    (comparison,) = read_results([place]).comparisons
    assert comparison.best_rules == []
    assert all(row["spread"] == pytest.approx(0, abs=1e-9) for row in comparison.summary[:-3])


def test_without_runs_the_origin_or_the_directory_names_the_data(tmp_path):
    place = write_comparison(tmp_path / "ml-10m")
    for run in (place / "runs").iterdir():
        (run / "metrics.json").unlink()
    assert read_results([place]).comparisons[0].data == "ml-10m"
    (place / "origin.json").write_text('{"data": "netflix"}')
    assert read_results([place]).comparisons[0].data == "netflix"


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("summary.csv", "policy,size,every,metric,mean,std,n\nlast,x,1,rmse,1,0,2\n",
         r"summary\.csv, line 2: size is 'x', not a number"),
        ("paired.csv", "a,b,size,every,metric,diff,low,high,p,folds\na,b,2,1,rmse,0,0,0,1,x\n",
         r"paired\.csv, line 2: folds is 'x', not a list of numbers"),
        ("rows.csv", None, r"is incomplete: rows\.csv is missing"),
        ("origin.json", "[1]", r"origin\.json is damaged: there is no JSON object"),
        ("origin.json", "{", r"origin\.json is damaged"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(file, content, sentence, tmp_path):
    place = write_comparison(tmp_path / "c")
    (place / file).unlink()
    if content is not None:
        (place / file).write_text(content)
    with pytest.raises(RunError, match=sentence):
        read_results([place])


def test_missing_results_are_reported(tmp_path):
    with pytest.raises(RunError, match="there is no such directory"):
        read_results([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="there are no results in it"):
        read_results([write_run(tmp_path / "run"), tmp_path / "empty"])
    with pytest.raises(RunError, match="there is nothing to report"):
        read_results([])


def test_a_run_of_the_first_version_is_refused(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "config.json").write_text('{"policy": "last"}')
    with pytest.raises(RunError, match=r"written by dips 0\.1: train the run again"):
        read_results([run])
