import csv
import json
import math

import numpy as np
import pytest

import dips
from dips.data.synthetic import stream
from dips.errors import ConfigError, RunError, TrainingDiverged
from dips.evaluation.comparison import BEST_RULE, Cell, UserSums
from dips.stream.users import make_stream
from dips.studies import compare as compare_module
from dips.studies import run as run_module
from dips.studies.compare import ComparisonPlan, RunKey, make_table
from dips.studies.run_directory import read_json, read_split
from dips.training import rollouts
from dips.training.config import TrainConfig

SMALL = {"epochs": 2, "dim": 6, "batch_size": 256, "device": "cpu"}
WHAT = {"policies": ["last", "reservoir"], "sizes": [2, 3], "folds": 2}


@pytest.fixture(scope="module")
def data():
    return stream(users=40, items=64, events=14)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """An undisturbed study and its table."""
    out = tmp_path_factory.mktemp("study") / "results"
    return out, dips.compare(data, **WHAT, out=out, **SMALL)


@pytest.fixture
def trained(monkeypatch):
    """The settings of all runs that are trained, trials included."""
    configs, run = [], compare_module.train_runs

    def recorded(jobs, **rest):
        configs.extend(config for _, config in jobs)
        return run(jobs, **rest)

    monkeypatch.setattr(compare_module, "train_runs", recorded)
    return configs


def interrupt_when(condition):
    def on_progress(progress):
        if condition(progress):
            raise KeyboardInterrupt

    return on_progress


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def fingerprints(out):
    """Which files the finished runs consist of."""
    return {
        path: (path.stat().st_ino, path.stat().st_mtime_ns)
        for metrics in out.glob("runs/*/metrics.json")
        for path in metrics.parent.iterdir()
    }


CELL = ["policy", "size", "every", "fold", "repeat"]


def test_files_and_keys(whole):
    out, table = whole
    files = {path.name for path in out.iterdir()}
    assert files == {
        "rows.csv", "summary.csv", "paired.csv", "best_rules.csv", "figure.png", "runs",
    }  # fmt: skip
    assert list(table.to_dict()) == ["rows", "summary", "paired", "best_rules", "verdict"]
    assert list(table.rows[0]) == [*CELL, "kept_policy", "valid", "test"]
    summary = ["policy", "size", "every", "metric", "mean", "std", "n"]
    paired = ["a", "b", "size", "every", "metric", "diff", "low", "high", "p", "folds"]
    assert list(table.summary[0]) == list(read(out / "summary.csv")[0]) == summary
    assert list(table.paired[0]) == list(read(out / "paired.csv")[0]) == paired
    rows = read(out / "rows.csv")
    assert list(rows[0]) == [*CELL, "kept_policy", "valid_rmse", "test_rmse"]
    assert [row["kept_policy"] for row in rows] == [row["policy"] for row in rows]
    assert [float(row["test_rmse"]) for row in rows] == [row["test"]["rmse"] for row in table.rows]


def test_every_cell_and_fold_has_a_run(whole):
    out, table = whole
    places = [tuple(row[name] for name in CELL) for row in table.rows]
    assert sorted(places) == sorted(
        (policy, size, 1, fold, 0)
        for policy in ("last", "reservoir")
        for size in (2, 3)
        for fold in (0, 1)
    )
    names = {path.name for path in (out / "runs").iterdir()}
    assert names == {f"{policy}-k{size}-t1-f{fold}-r0" for policy, size, _, fold, _ in places}
    one = json.loads((out / "runs" / "last-k3-t1-f1-r0" / "metrics.json").read_text())
    assert (one["seed"], one["fold"], one["repeat"]) == (0, 1, 0)
    assert one["test"] == next(
        row["test"]
        for row in table.rows
        if (row["policy"], row["size"], row["fold"]) == ("last", 3, 1)
    )


def test_summary_and_pairs_agree_with_the_rows(whole):
    _, table = whole
    means = {(row["policy"], row["size"]): row["mean"] for row in table.summary}
    assert all(row["n"] == 2 for row in table.summary)
    for (policy, size), mean in means.items():
        if policy == BEST_RULE:
            continue
        values = [
            row["test"]["rmse"]
            for row in table.rows
            if (row["policy"], row["size"]) == (policy, size)
        ]
        assert mean == pytest.approx(sum(values) / 2)
    for row in table.paired:
        assert (row["a"], row["b"]) == ("last", "reservoir")
        apart = means["last", row["size"]] - means["reservoir", row["size"]]
        assert row["diff"] == pytest.approx(apart, abs=0.02)  # pooled, not the mean of two folds
        assert row["low"] <= row["diff"] <= row["high"]
        values = {
            name: [
                one["test"]["rmse"]
                for one in table.rows
                if (one["policy"], one["size"]) == (name, row["size"])
            ]
            for name in ("last", "reservoir")
        }
        by_fold = np.subtract(values["last"], values["reservoir"])
        assert row["folds"] == pytest.approx(by_fold.tolist())


def test_each_fold_has_its_own_test_users(whole, data):
    out, _ = whole
    splits = {
        fold: {
            (out / "runs" / f"{policy}-k2-t1-f{fold}-r0" / "split.csv").read_text()
            for policy in ("last", "reservoir")
        }
        for fold in (0, 1)
    }
    assert len(splits[0]) == len(splits[1]) == 1
    tested = [read_split(out / "runs" / f"last-k2-t1-f{fold}-r0")["test"] for fold in (0, 1)]
    assert len(tested[0]) == len(tested[1]) == data.users / 5
    assert not tested[0] & tested[1]
    assert tested[0] == {part_id for part_id in ids(data.split_users(seed=0)[2])}


def ids(part):
    return [part.user_id(user) for user in range(part.users)]


def test_five_folds_test_every_user_once_and_repeats_train_again(data, tmp_path):
    table = dips.compare(
        data, ["last"], [2], seed=4, repeats=2, out=tmp_path, **{**SMALL, "epochs": 1}
    )
    assert [(row["fold"], row["repeat"]) for row in table.rows] == [
        (fold, repeat) for fold in range(5) for repeat in range(2)
    ]
    places = {
        (row["fold"], row["repeat"]): tmp_path
        / "runs"
        / f"last-k2-t1-f{row['fold']}-r{row['repeat']}"
        for row in table.rows
    }
    tested = [user for fold in range(5) for user in read_split(places[fold, 0])["test"]]
    assert sorted(tested) == sorted(ids(data))
    for fold in range(5):
        first, second = (places[fold, repeat] for repeat in range(2))
        assert (first / "split.csv").read_text() == (second / "split.csv").read_text()
        assert (
            read_json(first / "metrics.json")["test"] != read_json(second / "metrics.json")["test"]
        )
    assert [row["n"] for row in table.summary] == [5]


def test_added_repeats_train_only_what_is_missing(data, tmp_path, trained):
    what = {"policies": ["last"], "sizes": [2], "out": tmp_path, **SMALL}
    one = dips.compare(data, folds=1, **what)
    trained.clear()
    two = dips.compare(data, folds=2, repeats=2, **what)
    found = [(config.training.fold, config.training.repeat) for config in trained]
    assert sorted(found) == [(0, 1), (1, 0), (1, 1)]
    assert two.rows[0] == one.rows[0]
    with pytest.raises(RunError, match=r"was made with other settings \(seed\)"):
        dips.compare(data, folds=1, seed=1, **what)


def run_key(policy, fold, repeat=0, size=4):
    return RunKey(Cell(policy, size, 1), fold, repeat)


def test_the_best_rule_is_composed_of_the_choices_on_validation():
    """Fold 0 chooses hardest and fold 1 last; on test the other one is better in both."""
    errors = {  # (validation, test)
        ("last", 0): (0.9, 1.0), ("hardest", 0): (0.8, 2.0), ("learned", 0): (0.7, 3.0),
        ("last", 1): (0.8, 4.0), ("hardest", 1): (0.9, 1.0), ("learned", 1): (0.7, 2.0),
        ("all", 0): (0.1, 0.1), ("all", 1): (0.1, 0.1),
    }  # fmt: skip
    rows, users = {}, {}
    for (policy, fold), (valid, test) in errors.items():
        key = run_key(policy, fold)
        rows[key] = {**key.settings(), "valid": {"rmse": valid}, "test": {"rmse": test}}
        users[key] = UserSums(
            [f"u{fold}"], np.ones(1), {"squared_error": np.array([test**2])}, fold
        )
    table = make_table(rows, users, ["last", "hardest"])
    assert table.best_rules == [
        {"size": 4, "every": 1, "fold": 0, "policy": "hardest"},
        {"size": 4, "every": 1, "fold": 1, "policy": "last"},
    ]
    assert len(table.rows) == 8  # the composite is no run
    means = {row["policy"]: row["mean"] for row in table.summary}
    assert means[BEST_RULE] == pytest.approx((2.0 + 4.0) / 2)
    pairs = {(row["a"], row["b"]): row for row in table.paired}
    assert pairs["learned", BEST_RULE]["folds"] == pytest.approx([3.0 - 2.0, 2.0 - 4.0])
    assert not {("last", BEST_RULE), ("hardest", BEST_RULE)} & pairs.keys()
    assert (
        "learned is not better than the best rule on validation (hardest, last)" in table.verdict()
    )


def test_learned_policies_and_all_are_no_rules(data):
    found = plan(policies=["last", "learned", "hardest:8", "dips", "all", "mix:1"])
    assert found.rules() == ["last", "hardest:8", "mix:1"]


def test_a_split_by_time_has_one_fold(data, tmp_path):
    what = {"policies": ["last"], "sizes": [2], "split": "time", **SMALL}
    table = dips.compare(data, **what, out=tmp_path / "one")
    assert [(row["fold"], row["repeat"]) for row in table.rows] == [(0, 0)]
    with pytest.raises(
        ConfigError, match=r"folds is 2: a split by time has no folds; give --folds 1"
    ):
        dips.compare(data, folds=2, out=tmp_path / "two", **what)
    assert not (tmp_path / "two").exists()


def test_an_interrupted_comparison_resumes(whole, data, tmp_path, trained):
    out = tmp_path / "results"
    on_progress = interrupt_when(lambda progress: progress.done > progress.total // 2)
    with pytest.raises(KeyboardInterrupt):
        dips.compare(data, **WHAT, out=out, on_progress=on_progress, **SMALL)
    before = fingerprints(out)
    finished = {path.parent for path in before}
    assert len(finished) == 4
    assert not (out / "rows.csv").exists()
    trained.clear()
    table = dips.compare(data, **WHAT, out=out, **SMALL)
    assert len(trained) == 4
    after = fingerprints(out)
    assert {path: after[path] for path in before} == before
    assert table == whole[1]


def test_a_finished_study_is_not_trained_again(whole, data, trained):
    out, table = whole
    before = fingerprints(out)
    assert dips.compare(data, **WHAT, out=out, **SMALL) == table
    assert trained == []
    assert fingerprints(out) == before


def test_added_cells_train_only_what_is_missing(whole, data, tmp_path, trained):
    out = tmp_path / "results"
    dips.compare(data, ["last"], [2], folds=1, out=out, **SMALL)
    trained.clear()
    table = dips.compare(data, **WHAT, out=out, **SMALL)
    assert len(trained) == 7
    grown = [row["test"]["rmse"] for row in table.rows]
    assert grown == pytest.approx([row["test"]["rmse"] for row in whole[1].rows], abs=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"epochs": 3}, "epochs"), ({"dim": 5, "inner_lr": 0.2}, "dim, inner_lr")],
)
def test_other_settings_in_the_same_directory_are_refused(whole, data, change, named):
    out, _ = whole
    before = fingerprints(out)
    with pytest.raises(
        RunError, match=rf"was made with other settings \({named}\): give --out another"
    ):
        dips.compare(data, **WHAT, out=out, **{**SMALL, **change})
    assert fingerprints(out) == before


def test_other_data_in_the_same_directory_is_refused(whole, data):
    with pytest.raises(RunError, match=r"was made with other settings \(data\)"):
        dips.compare(data, **WHAT, out=whole[0], source="elsewhere", **SMALL)


def test_every_policy_gets_the_same_trials_and_no_trial_scores_test_users(
    data, tmp_path, monkeypatch
):
    rolled_out, stages, run = set(), [], compare_module.train_runs

    def recorded_stream(parts, columns):
        rolled_out.update(part.user_id(user) for part in parts for user in range(part.users))
        return make_stream(parts, columns)

    monkeypatch.setattr(run_module, "make_stream", recorded_stream)

    def staged(jobs, **rest):
        rolled_out.clear()
        run(jobs, **rest)
        stages.append(set(rolled_out))

    monkeypatch.setattr(rollouts, "make_stream", recorded_stream)
    monkeypatch.setattr(compare_module, "train_runs", staged)
    dips.compare(data, **WHAT, out=tmp_path, tune=3, **SMALL)
    train, valid, _ = data.split_users(seed=0)
    assert len(stages[1]) == data.users
    assert stages[0] == {part.user_id(u) for part in (train, valid) for u in range(part.users)}
    lines = [
        json.loads(name) for name in json.loads((tmp_path / "tuning.json").read_text())["trials"]
    ]
    by_place = {}
    for policy, size, every, point in lines:
        by_place.setdefault((policy, size, every), []).append(point)
    assert len(by_place) == 4
    first, *others = by_place.values()
    assert len(first) == 3
    assert {} in first
    assert all(sorted(map(str, other)) == sorted(map(str, first)) for other in others)


def test_tuning_takes_the_best_trial_of_each_policy(data, tmp_path, trained, monkeypatch):
    points = [{}, {"learning_rate": 0.0}, {"learning_rate": 0.05}]
    monkeypatch.setattr(compare_module, "trials", lambda count, task: points[:count])
    settings = {**SMALL, "seed": 3, "folds": 1, "sizes": [2], "tune": 3}
    dips.compare(data, ["last", "reservoir"], out=tmp_path, **settings)
    assert len(trained) == 8
    assert {config.training.seed for config in trained} == {3}
    trials = json.loads((tmp_path / "tuning.json").read_text())["trials"]
    for config in trained[6:]:
        scores = [
            trials[json.dumps([config.sketch.policy, 2, 1, p], sort_keys=True)] for p in points
        ]
        best = points[scores.index(min(scores))]
        assert config.training.learning_rate == best.get("learning_rate", 0.01)
        assert scores.index(min(scores)) != 1  # a rate of zero learns nothing


def test_interrupted_tuning_resumes(data, tmp_path, trained):
    what = {**WHAT, **SMALL, "tune": 2, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        dips.compare(data, on_progress=interrupt_when(lambda progress: progress.done > 8), **what)
    with pytest.raises(
        RunError, match=r"was tuned with other settings \(epochs\): give --out another"
    ):
        dips.compare(data, **{**what, "epochs": 3})
    trained.clear()
    dips.compare(data, **what)
    assert len(trained) == 4 + 8  # half of the trials were there


def test_a_diverging_trial_is_never_chosen(data, tmp_path, monkeypatch, trained):
    wild = [{"inner_lr": 1e6}, {"inner_lr": 0.1}]
    monkeypatch.setattr(compare_module, "trials", lambda count, task: wild)
    table = dips.compare(data, ["last"], [2], folds=1, tune=2, out=tmp_path, **SMALL)
    assert trained[-1].model.inner_lr == 0.1
    assert math.isfinite(table.rows[0]["test"]["rmse"])
    json.loads((tmp_path / "tuning.json").read_text(), parse_constant=pytest.fail)  # no NaN


def test_a_diverging_run_raises_after_the_other_runs_were_written(data, tmp_path, monkeypatch):
    run = compare_module.train_runs

    def spoiled(jobs, *, on_result, **rest):
        def spoil(index, result):
            if jobs[index][1].sketch.policy == "last":
                result.error = "the loss was no longer a number"
            on_result(index, result)

        return run(jobs, on_result=spoil, **rest)

    monkeypatch.setattr(compare_module, "train_runs", spoiled)
    with pytest.raises(TrainingDiverged, match="no longer a number"):
        dips.compare(data, **WHAT, out=tmp_path, **SMALL)
    names = {path.name[:4] for path in (tmp_path / "runs").iterdir()}
    assert names == {"rese"}
    assert len(list((tmp_path / "runs").iterdir())) == 4


def plan(**changes):
    given = {"policies": ["last"], "sizes": [4], "every": [1], **changes}
    return ComparisonPlan(settings=lambda policy: TrainConfig.of(policy=policy), **given)


def test_mix_has_cells_only_at_larger_sizes():
    found = plan(policies=["mix:2", "last-top:4", "last"], sizes=[2, 3, 8]).cells()
    assert [cell.size for cell in found if cell.policy == "mix:2"] == [3, 8]
    assert [cell.size for cell in found if cell.policy == "last-top:4"] == [8]
    assert [cell.size for cell in found if cell.policy == "last"] == [2, 3, 8]
    with pytest.raises(ConfigError, match="mix:9 leaves no slot to sample at size 8"):
        plan(policies=["last", "mix:9"], sizes=[2, 8]).cells()


def test_all_has_one_cell_at_the_largest_size(data, tmp_path):
    assert plan(policies=["all"], sizes=[8, 2]).cells() == [Cell("all", 8, 1)]
    table = dips.compare(data, ["all", "last"], [2, 3], folds=1, out=tmp_path, **SMALL)
    assert {(row["policy"], row["size"]) for row in table.rows} == {
        ("all", 3),
        ("last", 2),
        ("last", 3),
    }
    assert [(row["a"], row["b"], row["size"]) for row in table.paired] == [("all", "last", 3)]


def test_tune_once_uses_the_middle_size():
    once = plan(policies=["last", "mix:2"], sizes=[2, 4, 8], every=[1, 4], tune=2)
    assert once.tuned_at(Cell("last", 8, 4)) == Cell("last", 8, 4)
    once = plan(policies=["last", "mix:2"], sizes=[2, 4, 8], every=[1, 4], tune=2, tune_once=True)
    assert {once.tuned_at(cell) for cell in once.cells()} == {
        Cell("last", 4, 1),
        Cell("mix:2", 8, 1),
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"policies": ["last", "mix:x"]}, "must be a number"),
        ({"policies": ["last", "first"]}, "unknown policy 'first'"),
        ({"sizes": [2, 0]}, "size is 0: it must be at least 1"),
        ({"every": [0]}, "every is 0: it must be at least 1"),
        ({"folds": 0}, "folds is 0: it must be between 1 and 5"),
        ({"folds": 6}, "folds is 6: it must be between 1 and 5"),
        ({"repeats": 0}, "repeats is 0: it must be at least 1"),
        ({"policies": []}, "there is nothing to compare"),
        ({"loss": "softmax"}, "loss 'softmax' does not fit the task"),
        ({"tune": -1}, "tune is -1"),
        ({"max_seconds": 9.0}, "limit --epochs"),
        ({"device": "tpu"}, "device 'tpu': choose one of"),
        (
            {"policies": ["dips"], "every": [2, 1], "selection": "sampled", "estimator": "gumbel"},
            "'gumbel' works online only",
        ),
    ],
)
def test_a_bad_plan_is_refused_before_anything_is_written(change, reason, data, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        dips.compare(data, out=tmp_path / "results", **{**WHAT, **SMALL, **change})
    assert not list(tmp_path.iterdir())


def test_a_results_directory_that_is_a_file_is_refused(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file cannot be written"):
        dips.compare(data, out=tmp_path / "file", **WHAT, **SMALL)
