"""Side information from the command line: prepare, train, evaluate, sketch."""

import csv
import json

import numpy as np
import pytest

from dips.data.prepared import open_prepared

FAST = ("--epochs", 1, "--dim", 6, "--batch-size", 256, "--device", "cpu")


@pytest.fixture
def table(tmp_path):
    """A CSV with a column of numbers and one of names, and nothing prepared."""
    rng = np.random.default_rng(0)
    path = tmp_path / "events.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "rating", "time", "minutes", "device"])
        for user in range(30):
            for t in range(12):
                item, rating = rng.integers(20), rng.integers(1, 6)
                device = rng.choice(["phone", "tv"])
                writer.writerow([f"u{user}", f"i{item}", rating, 60 * t, rng.integers(90), device])
    return path


@pytest.mark.parametrize("policy", ["last", "learned", "dips"])
def test_side_information_from_table_to_sketches(table, command, tmp_path, policy):
    out = tmp_path / "run"
    side = ("--side", "time,minutes,device")
    made = command("train", table, "--policy", policy, *side, "--out", out, *FAST, "--json")
    assert made.code == 0, made.err
    again = command("evaluate", out, "--json")
    assert again.json["test"] == pytest.approx(made.json["test"])
    assert json.loads((out / "config.json").read_text())["asked"]["side"] == [
        "time",
        "minutes",
        "device",
    ]
    done = command("sketch", out, table, "--out", tmp_path / "sketches.csv")
    assert done.code == 0, done.err
    assert command("evaluate", out, table, "--json").code == 0


def test_prepared_files_keep_the_named_columns(table, command, tmp_path):
    ready = tmp_path / "ready.safetensors"
    done = command("data", "prepare", table, "--side", "device,minutes", "--out", ready)
    assert done.code == 0, done.err
    assert set(open_prepared(ready).side) == {"device", "minutes"}
    out = tmp_path / "run"
    made = command("train", ready, "--side", "minutes", "--out", out, *FAST)
    assert made.code == 0, made.err
    assert command("sketch", out, table, "--out", tmp_path / "s.csv").code == 0


def test_side_information_in_files_for_validation_and_test(table, command, tmp_path):
    out = tmp_path / "run"
    files = ("--valid-data", table, "--test-data", table)
    made = command("train", table, *files, "--side", "device", "--out", out, *FAST, "--json")
    assert made.code == 0, made.err
    assert command("evaluate", out, "--json").json["test"] == pytest.approx(made.json["test"])


@pytest.mark.parametrize("world", ["explicit", "implicit"])
def test_categories_and_times_of_prepared_data(trained, command, worlds, tmp_path, world):
    run = trained(world, "--policy", "learned", "--side", "categories,time")
    assert command("evaluate", run, "--json").code == 0
    assert command("sketch", run, worlds[world], "--out", tmp_path / "s.parquet").code == 0


def test_gradients_reads_the_columns_of_other_data(table, command, tmp_path):
    policy = ("--policy", "dips", "--recipe", "default", "--side", "device,minutes")
    made = command("train", table, *policy, "--out", tmp_path / "run", *FAST)
    assert made.code == 0, made.err
    done = command("gradients", tmp_path / "run", table, "--users", "3", "--steps", "2", "--json")
    assert done.code == 0, done.err
    assert done.json["steps"] == 2


def test_compare_with_side_information(table, command, tmp_path):
    policies = ("--policies", "last,learned", "--folds", "1")
    done = command("compare", table, *policies, "--side", "device", "--out", tmp_path / "r", *FAST)
    assert done.code == 0, done.err


def test_side_information_from_a_config_file(table, command, tmp_path):
    (tmp_path / "settings.toml").write_text('side = ["device"]\n')
    out = tmp_path / "run"
    made = command("train", table, "--config", tmp_path / "settings.toml", "--out", out, *FAST)
    assert made.code == 0, made.err
    assert json.loads((out / "config.json").read_text())["asked"]["side"] == ["device"]


def test_unknown_columns_are_refused(table, command, tmp_path, worlds):
    out = ("--out", tmp_path / "run")
    for data, reason in (
        (table, "line 1: there is no column 'mood' among user, item, rating, time, minutes"),
        (worlds["explicit"], "there is no column 'mood' beside user, item, rating and time"),
    ):
        done = command("train", data, "--side", "mood", *out, *FAST)
        assert done.code == 2
        assert reason in done.err
        assert not (tmp_path / "run").exists()
    done = command("train", table, "--side", "categories", *out, *FAST)
    assert done.code == 2
    assert "side 'categories': events has no such column; it has time" in done.err
