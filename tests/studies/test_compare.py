import csv
import json
import math

import pytest

import dips
from dips.data.synthetic import stream
from dips.errors import ConfigError, RunError, TrainingDiverged
from dips.evaluation.comparison import Cell
from dips.stream.users import make_stream
from dips.studies import compare as study
from dips.studies import run as experiment
from dips.studies.compare import Plan
from dips.training import rollouts as walks
from dips.training.config import TrainConfig

SMALL = {"epochs": 2, "dim": 6, "batch": 256, "device": "cpu"}
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
    configs, run = [], study.run

    def recorded(jobs, **rest):
        configs.extend(config for _, config in jobs)
        return run(jobs, **rest)

    monkeypatch.setattr(study, "run", recorded)
    return configs


def interrupt_when(condition):
    def watch(update):
        if condition(update):
            raise KeyboardInterrupt

    return watch


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


def test_every_place_has_its_run(whole):
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


def test_the_summary_and_the_pairs_are_those_of_the_rows(whole):
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


def test_seeds_are_splits(whole):
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


def test_a_study_goes_on_where_it_was_interrupted(whole, data, tmp_path, trained):
    out = tmp_path / "results"
    watch = interrupt_when(lambda update: update.done > update.total // 2)
    with pytest.raises(KeyboardInterrupt):
        dips.compare(data, **WHAT, out=out, watch=watch, **SMALL)
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


def test_a_finished_study_trains_nothing(whole, data, trained):
    out, table = whole
    before = fingerprints(out)
    assert dips.compare(data, **WHAT, out=out, **SMALL) == table
    assert trained == []
    assert fingerprints(out) == before


def test_a_study_can_grow(whole, data, tmp_path, trained):
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
def test_other_settings_in_the_same_place_are_refused(whole, data, change, named):
    out, _ = whole
    before = fingerprints(out)
    with pytest.raises(RunError, match=f"was made with another {named}: give --out another"):
        dips.compare(data, **WHAT, out=out, **{**SMALL, **change})
    assert fingerprints(out) == before


def test_other_data_in_the_same_place_is_refused(whole, data):
    with pytest.raises(RunError, match="was made with another data"):
        dips.compare(data, **WHAT, out=whole[0], source="elsewhere", **SMALL)


def test_every_policy_gets_the_same_trials_and_none_scores_test(data, tmp_path, monkeypatch):
    walked, stages, run = set(), [], study.run

    def watched(parts, columns):
        walked.update(part.user_id(user) for part in parts for user in range(part.users))
        return make_stream(parts, columns)

    monkeypatch.setattr(experiment, "make_stream", watched)

    def staged(jobs, **rest):
        walked.clear()
        run(jobs, **rest)
        stages.append(set(walked))

    monkeypatch.setattr(walks, "make_stream", watched)
    monkeypatch.setattr(study, "run", staged)
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
    monkeypatch.setattr(study, "trials", lambda count, task: points[:count])
    settings = {**SMALL, "seeds": [3], "sizes": [2], "tune": 3}
    dips.compare(data, ["last", "reservoir"], out=tmp_path, **settings)
    assert len(trained) == 8
    assert {config.seed for config in trained} == {3}
    trials = json.loads((tmp_path / "tuning.json").read_text())["trials"]
    for config in trained[6:]:
        scores = [trials[json.dumps([config.policy, 2, 1, p], sort_keys=True)] for p in points]
        best = points[scores.index(min(scores))]
        assert config.learning_rate == best.get("learning_rate", 0.01)
        assert scores.index(min(scores)) != 1  # a rate of zero learns nothing


def test_tuning_goes_on_where_it_was_interrupted(data, tmp_path, trained):
    what = {**WHAT, **SMALL, "tune": 2, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        dips.compare(data, watch=interrupt_when(lambda update: update.done > 8), **what)
    with pytest.raises(RunError, match="was tuned with another epochs: give --out another"):
        dips.compare(data, **{**what, "epochs": 3})
    trained.clear()
    dips.compare(data, **what)
    assert len(trained) == 4 + 8  # half of the trials were there


def test_a_diverging_trial_loses_and_does_no_harm(data, tmp_path, monkeypatch, trained):
    wild = [{"inner_lr": 1e6}, {"inner_lr": 0.1}]
    monkeypatch.setattr(study, "trials", lambda count, task: wild)
    table = dips.compare(data, ["last"], [2], seeds=[0], tune=2, out=tmp_path, **SMALL)
    assert trained[-1].inner_lr == 0.1
    assert math.isfinite(table.rows[0]["test"]["rmse"])
    json.loads((tmp_path / "tuning.json").read_text(), parse_constant=pytest.fail)  # no NaN


def test_a_diverging_run_stops_the_study_but_keeps_the_others(data, tmp_path, monkeypatch):
    run = study.run

    def spoiled(jobs, *, done, **rest):
        def spoil(index, outcome):
            if jobs[index][1].policy == "last":
                outcome.error = "the loss was no longer a number"
            done(index, outcome)

        return run(jobs, done=spoil, **rest)

    monkeypatch.setattr(study, "run", spoiled)
    with pytest.raises(TrainingDiverged, match="no longer a number"):
        dips.compare(data, **WHAT, out=tmp_path, **SMALL)
    names = {path.name[:4] for path in (tmp_path / "runs").iterdir()}
    assert names == {"rese"}
    assert len(list((tmp_path / "runs").iterdir())) == 4


def plan(**changes):
    given = {"policies": ["last"], "sizes": [4], "every": [1], "seeds": [0], **changes}
    return Plan(settings=lambda policy: TrainConfig(policy=policy), **given)


def test_a_mix_stands_only_where_it_fits():
    found = plan(policies=["mix:2", "last-top:4", "last"], sizes=[2, 3, 8]).cells()
    assert [cell.size for cell in found if cell.policy == "mix:2"] == [3, 8]
    assert [cell.size for cell in found if cell.policy == "last-top:4"] == [8]
    assert [cell.size for cell in found if cell.policy == "last"] == [2, 3, 8]
    with pytest.raises(ConfigError, match="mix:9 leaves no slot to sample at size 8"):
        plan(policies=["last", "mix:9"], sizes=[2, 8]).cells()


def test_all_stands_once_at_the_largest_size(data, tmp_path):
    assert plan(policies=["all"], sizes=[8, 2]).cells() == [Cell("all", 8, 1)]
    table = dips.compare(data, ["all", "last"], [2, 3], seeds=[0], out=tmp_path, **SMALL)
    assert {(row["policy"], row["size"]) for row in table.rows} == {
        ("all", 3),
        ("last", 2),
        ("last", 3),
    }
    assert [(row["a"], row["b"], row["size"]) for row in table.paired] == [("all", "last", 3)]


def test_tuning_once_carries_over_from_the_middle():
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
        ({"max_seconds": 9.0}, "limit epochs"),
        ({"device": "tpu"}, "device 'tpu': choose one of"),
        (
            {"policies": ["dips"], "every": [2, 1], "choice": "sampled", "estimator": "gumbel"},
            "'gumbel' works online only",
        ),
    ],
)
def test_a_plan_that_cannot_work_writes_nothing(change, reason, data, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        dips.compare(data, out=tmp_path / "results", **{**WHAT, **SMALL, **change})
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_a_file_is_refused(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file cannot be written"):
        dips.compare(data, out=tmp_path / "file", **WHAT, **SMALL)
