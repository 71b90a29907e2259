import csv
import json

import numpy as np
import pytest
import torch

import dips
from dips.data.interactions import from_arrays
from dips.data.synthetic import stream
from dips.errors import DataError, RunError
from dips.studies import run_directory
from dips.training import checkpoint
from dips.training.config import TrainConfig

SMALL = {"epochs": 2, "dim": 6, "batch_size": 256, "device": "cpu"}
FILES = {
    "config.json", "metrics.json", "model.safetensors", "log.jsonl", "split.csv", "curve.png",
    "test_users.csv",
}  # fmt: skip
KEYS = [
    "task", "policy", "size", "every", "seed", "fold", "repeat", "data", "users", "epochs",
    "best_epoch", "kept_policy", "valid", "test", "verdict", "train_seconds",
    "interactions_per_second", "peak_memory_bytes",
]  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return stream(users=40, items=64, events=14)


@pytest.fixture(scope="module")
def parts(data):
    return data.split_users(seed=2)


@pytest.fixture(scope="module")
def run(parts, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "one"
    return out, dips.train(*parts, out=out, policy="mix:1", size=3, every=2, seed=2, **SMALL)


def test_the_files_of_a_run(run):
    assert {path.name for path in run[0].iterdir()} == FILES


def test_without_test_users_there_are_no_test_files(parts, tmp_path):
    dips.train(*parts[:2], out=tmp_path, policy="last", **SMALL)
    assert {path.name for path in tmp_path.iterdir()} == FILES - {"test_users.csv"}
    assert run_directory.read_metrics(tmp_path)["test"] == {}


def test_metrics(run, data):
    found = run_directory.read_metrics(run[0])
    assert list(found) == KEYS
    assert found == json.loads(json.dumps(run[1].metrics()))
    assert (found["task"], found["policy"], found["size"]) == ("explicit", "mix:1", 3)
    assert (found["every"], found["seed"], found["epochs"]) == (2, 2, 2)
    assert (found["data"], found["users"]) == (data.name, data.users)
    assert list(found["valid"]) == list(found["test"]) == ["rmse"]
    assert found["train_seconds"] > 0
    assert found["interactions_per_second"] > 0
    assert found["peak_memory_bytes"] > 1 << 20


def test_config_holds_every_setting_and_opens_again(run, data):
    found = run_directory.read_config(run[0])
    assert found.pop("data") == data.name
    assert TrainConfig.of().but(**found) == run[1].config


def test_log_has_a_line_for_each_epoch(run):
    lines = [json.loads(line) for line in (run[0] / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert lines == run[1].history
    assert min(line["valid"] for line in lines) == pytest.approx(run[1].own.selection_loss)
    assert lines[1]["train_loss"] < lines[0]["train_loss"]


def test_split_names_every_user_once(run, data, parts):
    with (run[0] / "split.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["user", "part"]
    assert len(rows) == data.users
    assert run_directory.read_split(run[0]) == {
        name: {part.user_id(user) for user in range(part.users)}
        for name, part in zip(("train", "valid", "test"), parts, strict=True)
    }


def test_user_sums_add_up_to_the_metric(run, parts):
    sums = run_directory.read_user_sums(run[0])
    assert sums.users == [parts[2].user_id(user) for user in range(parts[2].users)]
    assert sums.count.tolist() == parts[2].lengths.tolist()
    rmse = (sums.sums["squared_error"].sum() / sums.count.sum()) ** 0.5
    assert rmse == pytest.approx(run[1].test.metrics["rmse"], rel=1e-12)


def test_a_user_id_may_be_anything(tmp_path):
    rng = np.random.default_rng(0)
    names = ['with "quotes"', "with, comma", "line\nbreak", "ünï", "plain"]
    data = from_arrays(
        np.repeat(np.arange(5), 6), rng.integers(0, 9, 30), rng.uniform(1, 5, 30), user_ids=names
    )
    parts = data.split_users(seed=0)
    dips.train(*parts, out=tmp_path, policy="last", **SMALL)
    assert set().union(*run_directory.read_split(tmp_path).values()) == set(names)
    assert set(run_directory.read_user_sums(tmp_path).users) < set(names)


def test_open_run_returns_the_trained_model(run):
    opened = run_directory.open_run(run[0]).recommender.state_dict()
    for name, value in run[1].trained.recommender.state_dict().items():
        assert torch.equal(opened[name], value)


def test_metrics_are_written_last(run, tmp_path, monkeypatch):
    """A run that was killed while it was written does not count as finished."""
    written = []

    def break_off(value, path):
        written.append(path.name)
        if path.name == "metrics.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(run_directory, "write_json", break_off)
    with pytest.raises(KeyboardInterrupt):
        run_directory.write_run(run[1], tmp_path, source="x")
    assert {path.name for path in tmp_path.iterdir()} == FILES - {"metrics.json", "config.json"}
    assert not run_directory.is_finished(tmp_path)


def test_a_used_run_directory_is_refused(run, tmp_path):
    config = TrainConfig.of(epochs=3)
    with pytest.raises(RunError, match="is a finished run: choose another --out, or remove it"):
        run_directory.prepare_directory(run[0], config, "x", resume=True)
    run_directory.prepare_directory(tmp_path / "new", config, "x", resume=False)
    run_directory.prepare_directory(
        tmp_path / "new", TrainConfig.of(), "x", resume=False
    )  # no epoch was done
    (tmp_path / "new" / checkpoint.FILE).write_bytes(b"")
    with pytest.raises(RunError, match="holds an interrupted run: continue it with --resume"):
        run_directory.prepare_directory(tmp_path / "new", TrainConfig.of(), "x", resume=False)
    with pytest.raises(
        RunError, match=r"was started with other settings \(epochs, data\): resume with"
    ):
        run_directory.prepare_directory(tmp_path / "new", config, "y", resume=True)
    run_directory.prepare_directory(
        tmp_path / "new", TrainConfig.of(max_seconds=5), "x", resume=True
    )


def test_unfinished_files_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "checkpoint.safetensors.123.part").write_bytes(b"half")
    run_directory.prepare_directory(tmp_path, TrainConfig.of(), "x", resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_directory_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataError, match="cannot be written"):
            run_directory.prepare_directory(place, TrainConfig.of(), "x", resume=False)


def test_damaged_or_missing_files_are_named(run, tmp_path):
    with pytest.raises(RunError, match=r"is not a finished run: metrics\.json is missing"):
        run_directory.read_metrics(tmp_path)
    with pytest.raises(RunError, match=r"is not a finished run: split\.csv is missing"):
        run_directory.read_split(tmp_path)
    (tmp_path / "config.json").write_text('{"size": ')
    with pytest.raises(RunError, match=r"config\.json is damaged: .*; train the run again"):
        run_directory.read_config(tmp_path)


@pytest.mark.parametrize("content", [b"", b"half", b"\xff" * 64])
def test_a_damaged_checkpoint_says_what_to_do(content, parts, tmp_path):
    run_directory.prepare_directory(
        tmp_path, TrainConfig.of(policy="last", **SMALL), parts[0].name, resume=False
    )
    (tmp_path / checkpoint.FILE).write_bytes(content)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors does not fit this run.*remove it"):
        dips.train(*parts, out=tmp_path, resume=True, policy="last", **SMALL)
