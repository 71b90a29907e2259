import csv
import json
import math

import pytest

import dips
from dips.data.synthetic import stream
from dips.errors import ConfigError, RunError, TrainingDiverged
from dips.evaluation.comparison import Cell
from dips.stream.users import make_stream
from dips.studies import compare as compare_module
from dips.studies import run as run_module
from dips.studies.compare import ComparisonPlan
from dips.training import rollouts
from dips.training.config import TrainConfig

SMALL = {"epochs": 2, "dim": 6, "batch_size": 256, "device": "cpu"}
WHAT = {"policies": ["last", "reservoir"], "sizes": [2, 3], "seeds": [0, 1]}


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


CELL = ["policy", "size", "every", "seed"]


def test_files_and_keys(whole):
    out, table = whole
    files = {path.name for path in out.iterdir()}
    assert files == {"rows.csv", "summary.csv", "paired.csv", "figure.png", "runs"}
    assert list(table.to_dict()) == ["rows", "summary", "paired", "verdict"]
    assert list(table.rows[0]) == [*CELL, "kept_policy", "valid", "test"]
    summary = ["policy", "size", "every", "metric", "mean", "std", "n"]
    paired = ["a", "b", "size", "every", "metric", "diff", "low", "high", "p"]
    assert list(table.summary[0]) == list(read(out / "summary.csv")[0]) == summary
    assert list(table.paired[0]) == list(read(out / "paired.csv")[0]) == paired
    rows = read(out / "rows.csv")
    assert list(rows[0]) == [*CELL, "kept_policy", "valid_rmse", "test_rmse"]
    assert [row["kept_policy"] for row in rows] == [row["policy"] for row in rows]
    assert [float(row["test_rmse"]) for row in rows] == [row["test"]["rmse"] for row in table.rows]


def test_every_cell_and_seed_has_a_run(whole):
    out, table = whole
    places = [(row["policy"], row["size"], row["every"], row["seed"]) for row in table.rows]
    assert sorted(places) == sorted(
        (policy, size, 1, seed)
        for policy in ("last", "reservoir")
        for size in (2, 3)
        for seed in (0, 1)
    )
    names = {path.name for path in (out / "runs").iterdir()}
    assert names == {f"{policy}-k{size}-t1-s{seed}" for policy, size, _, seed in places}
    one = json.loads((out / "runs" / "last-k3-t1-s1" / "metrics.json").read_text())
    assert one["test"] == next(
        row["test"]
        for row in table.rows
        if (row["policy"], row["size"], row["seed"]) == ("last", 3, 1)
    )


def test_summary_and_pairs_agree_with_the_rows(whole):
    _, table = whole
    means = {(row["policy"], row["size"]): row["mean"] for row in table.summary}
    assert all(row["n"] == 2 for row in table.summary)
    for (policy, size), mean in means.items():
        values = [
            row["test"]["rmse"]
            for row in table.rows
            if (row["policy"], row["size"]) == (policy, size)
        ]
        assert mean == pytest.approx(sum(values) / 2)
    for row in table.paired:
        assert (row["a"], row["b"]) == ("last", "reservoir")
        apart = means["last", row["size"]] - means["reservoir", row["size"]]
        assert row["diff"] == pytest.approx(apart, abs=0.02)  # pooled, not the mean of two seeds
        assert row["low"] <= row["diff"] <= row["high"]


def test_each_seed_has_its_own_split(whole):
    out, _ = whole
    splits = {
        seed: {
            (out / "runs" / f"{policy}-k2-t1-s{seed}" / "split.csv").read_text()
            for policy in ("last", "reservoir")
        }
        for seed in (0, 1)
    }
    assert len(splits[0]) == len(splits[1]) == 1
    assert splits[0] != splits[1]


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
    dips.compare(data, ["last"], [2], seeds=[0], out=out, **SMALL)
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
    settings = {**SMALL, "seeds": [3], "sizes": [2], "tune": 3}
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
    table = dips.compare(data, ["last"], [2], seeds=[0], tune=2, out=tmp_path, **SMALL)
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
    given = {"policies": ["last"], "sizes": [4], "every": [1], "seeds": [0], **changes}
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
    table = dips.compare(data, ["all", "last"], [2, 3], seeds=[0], out=tmp_path, **SMALL)
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
        ({"seeds": []}, "there is nothing to compare"),
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
