import json

import numpy as np
import polars
import pytest

from dips.data.interactions import from_arrays
from dips.data.prepared import open_prepared, write
from dips.studies.run_directory import read_split


def own_metrics(run):
    return json.loads((run / "metrics.json").read_text())["test"]


@pytest.mark.parametrize(
    ("world", "arguments"),
    [
        ("explicit", ["--policy", "reservoir", "--seed", "3"]),
        ("explicit", ["--policy", "last", "--max-users", "20"]),
        ("explicit", ["--policy", "reservoir", "--split", "time"]),
        ("explicit", ["--loss", "bce", "--every", "3"]),
        ("explicit", ["--loss", "cce"]),
        ("implicit", ["--policy", "mix:1"]),
    ],
)
def test_evaluate_repeats_the_test_metrics(world, arguments, command, trained):
    run = trained(world, *arguments)
    found = command("evaluate", run, "--json")
    assert found.code == 0, found.err
    assert list(found.json) == ["run", "data", "users", "test"]
    assert found.json["run"] == str(run)
    assert found.json["users"] == len(read_split(run)["test"])
    assert found.json["test"] == pytest.approx(own_metrics(run), abs=1e-7)


def test_a_table_is_printed(command, trained):
    found = command("evaluate", trained())
    assert found.code == 0
    assert "8 users of synthetic" in " ".join(found.out.split())
    assert f"{own_metrics(trained())['rmse']:.4f}" in found.out


def test_training_users_are_never_scored(command, trained, worlds, tmp_path):
    run = trained()
    found = command("evaluate", run, worlds["explicit"], "--json")
    assert found.json["users"] == 8  # of 40
    assert found.json["test"] == pytest.approx(own_metrics(run), abs=1e-7)
    data, met = open_prepared(worlds["explicit"]), read_split(run)["train"]
    users = [user for user in range(data.users) if data.user_id(user) in met]
    write(data.select(users), tmp_path / "known.safetensors")
    refused = command("evaluate", run, tmp_path / "known.safetensors", "--json")
    assert refused.code == 2
    assert (
        "all its users were in the training or validation part of this run; give other data"
        in refused.err
    )


def test_users_of_other_data_are_scored(command, trained, tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "others.safetensors"
    names = [f"new user {user}" for user in range(5)]
    events = (np.repeat(np.arange(5), 8), rng.integers(0, 64, 40), rng.integers(1, 6, 40))
    write(from_arrays(*events, user_ids=names), path)
    found = command("evaluate", trained(), path, "--json")
    assert found.code == 0, found.err
    assert found.json["users"] == 5
    assert found.json["data"] == str(path)


def test_changed_data_is_refused(command, trained, worlds, tmp_path):
    path = tmp_path / "data.safetensors"
    data = open_prepared(worlds["explicit"])
    write(data, path)
    settings = ("--epochs", 1, "--dim", 6, "--device", "cpu")
    assert command("train", path, "--out", tmp_path / "run", *settings).code == 0
    write(data.select(range(30)), path)
    found = command("evaluate", tmp_path / "run")
    assert found.code == 2
    assert "is not what it was when the run was made" in found.err


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_every_prediction_in_a_table(ending, command, trained, worlds, tmp_path):
    path = tmp_path / f"predictions.{ending}"
    found = command("evaluate", trained(), "--predictions", path, "--json")
    assert found.code == 0, found.err
    read = polars.read_parquet if ending == "parquet" else polars.read_csv
    frame = read(path, **({} if ending == "parquet" else {"schema_overrides": {"user": str}}))
    assert frame.columns == ["user", "t", "item", "rating", "prediction"]
    error = frame["prediction"] - frame["rating"]
    assert (error**2).mean() ** 0.5 == pytest.approx(found.json["test"]["rmse"], abs=1e-6)
    data = open_prepared(worlds["explicit"])
    for user in read_split(trained())["test"]:
        rows = frame.filter(polars.col("user") == user)
        events = data.events(data.find_user(user))
        assert rows["t"].to_list() == list(range(len(data.item[events])))
        assert rows["rating"].to_list() == data.rating[events].tolist()
        ids = [data.item_ids[int(item)] for item in data.item[events]]
        assert [str(item) for item in rows["item"]] == ids


def test_ranks_of_implicit_predictions(command, trained, tmp_path):
    run = trained("implicit", "--policy", "mix:1")
    path = tmp_path / "ranks.parquet"
    found = command("evaluate", run, "--predictions", path, "--json")
    frame = polars.read_parquet(path)
    assert frame.columns == ["user", "t", "item", "rank"]
    hits = frame["rank"] <= 20
    assert hits.mean() == pytest.approx(found.json["test"]["recall@20"])
    best = (hits / frame["rank"]).mean()
    assert best == pytest.approx(found.json["test"]["mrr@20"], abs=1e-6)


def test_the_file_of_predictions_is_printed(command, trained, tmp_path):
    found = command("evaluate", trained(), "--predictions", tmp_path / "p.csv")
    assert f"all predictions are in {tmp_path / 'p.csv'}" in found.out.replace("\n", "")
