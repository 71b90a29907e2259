import csv
import json
import math
import re

import numpy as np
import pytest

from dips.cli.settings import ADVANCED, BASIC
from dips.data.prepared import open_prepared
from dips.policy.registry import POLICIES
from dips.studies.run_directory import read_config, read_split
from dips.training.config import leaf_fields

FAST = ("--epochs", 1, "--dim", 6, "--batch-size", 256, "--device", "cpu")
KEYS = [
    "task", "policy", "size", "every", "seed", "fold", "repeat", "data", "users", "epochs",
    "best_epoch", "kept_policy", "valid", "test", "verdict", "train_seconds",
    "interactions_per_second", "peak_memory_bytes",
]  # fmt: skip
ALONE = ("--policy", "learned", "--baselines", "", "--initial-policy", "last")
RANKING = ["recall@20", "mrr@20", "ndcg@20"]
METRICS = {
    "mse": ["rmse"],
    "bce": ["rmse", "logloss", "auc"],
    "cce": ["rmse", "logloss"],
    "softmax": RANKING,
}


def assert_metrics(found, loss):
    for part in ("valid", "test"):
        assert sorted(found[part]) == sorted(METRICS[loss])
        assert all(math.isfinite(value) and value >= 0 for value in found[part].values())


def test_the_json_output_is_metrics_json(command, worlds, tmp_path):
    out = tmp_path / "deep" / "run"
    found = command(
        "train", worlds["explicit"], "--out", out, "--policy", "reservoir", "--size", 3, "--every",
        2, "--seed", 5, "--fold", 1, "--repeat", 2, "--json", *FAST,
    )  # fmt: skip
    assert found.code == 0
    assert list(found.json) == KEYS
    assert found.json == json.loads((out / "metrics.json").read_text())
    assert found.json["verdict"] == {}  # nothing to compare with
    assert (found.json["policy"], found.json["size"], found.json["every"]) == ("reservoir", 3, 2)
    assert (found.json["seed"], found.json["users"], found.json["epochs"]) == (5, 40, 1)
    assert (found.json["fold"], found.json["repeat"]) == (1, 2)
    settings = json.loads((out / "config.json").read_text())
    assert list(settings) == ["data", "asked", "resolved", "decisions"]
    assert settings["asked"]["weight_decay"] is None
    assert 0 < settings["resolved"]["weight_decay"] <= 3e-3
    assert "weight_decay" in [one["setting"] for one in settings["decisions"]]
    assert "weight_decay" in found.err  # decisions are printed
    assert len(found.out.splitlines()) == 1  # progress goes to standard error
    assert "epoch 1 of 1: validation" in found.err


def test_a_table_is_printed(command, worlds, tmp_path):
    found = command("train", worlds["explicit"], "--out", tmp_path / "run", *FAST)
    assert found.code == 0
    assert "learned, K = 4, on synthetic" in " ".join(found.out.split())
    assert "rmse" in found.out
    assert f"learning curve: {tmp_path / 'run'}/curve.png" in found.out.replace("\n", "")
    every = command(
        "train", worlds["explicit"], "--out", tmp_path / "all", "--policy", "all", *FAST
    )
    assert "all, on synthetic" in " ".join(every.out.split())


@pytest.mark.parametrize("recommender", ["dot", "mlp"])
@pytest.mark.parametrize("loss", list(METRICS))
@pytest.mark.parametrize(
    "when", [("--every", 1), ("--every", 3), ("--periods", "3,5,2")], ids=["online", "batch", "mix"]
)
def test_every_loss_recommender_and_schedule(loss, recommender, when, command, worlds, tmp_path):
    world = worlds["implicit" if loss == "softmax" else "explicit"]
    found = command(
        "train", world, "--out", tmp_path / "run", "--policy", "mix:1", "--size", 3, "--loss", loss,
        "--recommender", recommender, "--inner-steps", 3, *when, *FAST, "--json",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert_metrics(found.json, loss)


@pytest.mark.parametrize(
    "policy",
    ["last", "hardest", "hardest:9", "influence", "last-distinct", "frequent", "all", "mix:2"],
)
def test_every_policy(policy, command, worlds, tmp_path):
    found = command(
        "train", worlds["explicit"], "--out", tmp_path / "run", "--policy", policy, "--size", 3,
        "--max-users", 20, "--inner-steps", 3, *FAST, "--json",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert_metrics(found.json, "mse")
    assert (found.json["policy"], found.json["users"]) == (policy, 20)


def test_the_task_is_explicit_if_and_only_if_there_are_ratings(command, worlds, tmp_path):
    for task, arguments in (
        ("explicit", [worlds["explicit"]]),
        ("implicit", [worlds["implicit"]]),
        ("implicit", [worlds["explicit"], "--task", "implicit"]),
    ):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        found = command("train", *arguments, "--out", out, "--json", *FAST)
        assert found.json["task"] == task
        assert_metrics(found.json, "mse" if task == "explicit" else "softmax")


def test_a_split_by_time(command, worlds, tmp_path):
    out = tmp_path / "run"
    found = command("train", worlds["explicit"], "--out", out, "--split", "time", "--json", *FAST)
    assert found.code == 0
    assert_metrics(found.json, "mse")
    parts = read_split(out)
    assert len(parts["train"]) == len(parts["valid"]) == len(parts["test"]) == 40
    data = open_prepared(worlds["explicit"])
    with (out / "test_users.csv").open() as file:
        counts = {row["user"]: float(row["count"]) for row in csv.DictReader(file)}
    for user in range(data.users):
        length = int(data.lengths[user])
        assert counts[data.user_id(user)] == length - math.floor(0.8 * length + 1e-9)


def test_a_split_at_dates(command, worlds, tmp_path):
    out = tmp_path / "run"
    found = command("train", worlds["explicit"], "--out", out, "--split", "date", "--json", *FAST)
    assert found.code == 0
    data = open_prepared(worlds["explicit"])
    date = np.sort(data.time)[math.floor(0.8 * len(data) + 1e-9)]
    with (out / "test_users.csv").open() as file:
        counts = {row["user"]: int(float(row["count"])) for row in csv.DictReader(file)}
    after = {data.user_id(u): int((data.time[data.events(u)] >= date).sum()) for u in range(40)}
    assert counts == {user: count for user, count in after.items() if count}
    again = command("evaluate", out, "--json")
    assert again.json["test"] == found.json["test"]
    folds = ("--policies", "last", "--sizes", 2, "--folds", 2, "--split", "date")
    refused = command("compare", worlds["explicit"], "--out", tmp_path / "table", *folds)
    assert refused.code == 2
    assert "a split by time has no folds" in refused.err


@pytest.fixture
def own_files(tmp_path):
    """Three tables; user 2 is in two of them, and item 'new' in the last only."""
    users = {"train": range(1, 9), "valid": (20, 21), "test": (2, 30, 31)}
    for name, members in users.items():
        rows = [
            f"{user},{'new' if name == 'test' and t == 9 else (user * 7 + t) % 12},"
            f"{1 + (user + t) % 5},{t}"
            for user in members
            for t in range(10)
        ]
        table = "\n".join(["user,item,rating,timestamp", *rows]) + "\n"
        (tmp_path / f"{name}.csv").write_text(table)
    return [tmp_path / f"{name}.csv" for name in users]


def test_separate_files_for_training_validation_and_test(command, own_files, tmp_path):
    train, valid, test = own_files
    out = tmp_path / "run"
    own = ("--valid-data", valid, "--test-data", test)
    found = command("train", train, *own, "--out", out, "--json", *FAST)
    assert found.code == 0, found.err
    assert_metrics(found.json, "mse")
    assert found.json["users"] == 13
    assert read_split(out) == {
        "train": {str(user) for user in range(1, 9)},
        "valid": {"20", "21"},
        "test": {"2", "30", "31"},
    }
    assert read_config(out)["data"] == [str(path) for path in own_files]
    again = command("evaluate", out, "--json")
    assert again.code == 0, again.err
    assert again.json["test"] == pytest.approx(found.json["test"])
    other = command("evaluate", out, test, "--json")
    assert other.json["users"] == 2  # user 2 has trained


def test_no_test_does_not_score_test_users(command, worlds, tmp_path):
    out = tmp_path / "run"
    found = command("train", worlds["explicit"], "--out", out, "--no-test", "--json", *FAST)
    assert found.json["test"] == {}
    assert found.json["valid"]
    assert not (out / "test_users.csv").exists()


def test_recipe_below_file_below_flag(command, worlds, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(
        'policy = "reservoir"\nbatch_size = 77\nsize = 3\nperiods = [2, 1]\nepochs = 1\n'
    )
    command(
        "train", worlds["explicit"], "--out", tmp_path / "run", "--recipe", "quick", "--config",
        file, "--size", 2, "--dim", 6, "--device", "cpu",
    )  # fmt: skip
    found = read_config(tmp_path / "run")
    assert found["policy"] == "reservoir"
    assert (found["batch_size"], found["epochs"]) == (77, 1)  # the recipe says 1024 and 6
    assert found["size"] == 2
    assert found["periods"] == [2, 1]
    command("train", worlds["explicit"], "--out", tmp_path / "b", "--recipe", "quick", *FAST[:4])
    assert read_config(tmp_path / "b")["batch_size"] == 1024


def test_every_setting_is_a_flag_with_a_sentence(command):
    text = " ".join(command("train", "--help").out.replace("│", " ").split())
    for leaf in leaf_fields():
        assert f"--{leaf.name.replace('_', '-')}"[:18] in text
    assert "How many interactions a sketch keeps" in text
    assert (
        text.index(BASIC) < text.index("--size") < text.index(ADVANCED) < text.index("--inner-lr")
    )
    for policy in POLICIES:
        assert re.search(rf"{policy}[,;: ]", text)
    assert sum(leaf.metadata["basic"] for leaf in leaf_fields()) <= 12  # what users need


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("--policy", "last"), "epoch 1."),
        (ALONE, "epoch 1 (the policy has its initial parameters)."),
        ((*ALONE, "--policy-warmup-epochs", 0), "epoch 1."),
        (ALONE[:-2], "epoch 1 of the start at "),
        (("--policy", "learned", "--baselines", "reservoir", "--policy-lr", 0), ""),
    ],
)
def test_the_kept_epoch_is_printed(settings, said, command, worlds, tmp_path):
    found = command("train", worlds["explicit"], "--out", tmp_path / "run", *settings, *FAST)
    assert f"The model is from {said}" in " ".join(found.out.split())
    verdict = found.out.splitlines()[-1]
    assert verdict.startswith("verdict: ") == ("reservoir" in settings)


def test_the_time_is_estimated_before_training(command, worlds, tmp_path, monkeypatch):
    monkeypatch.setattr("dips.studies.estimate.SHORT_WORK", 0)
    found = command("train", worlds["explicit"], "--out", tmp_path / "run", *FAST, "--json")
    assert found.err.index("Training takes about ") < found.err.index("epoch 1 of 1")
    assert "Training takes" not in found.out


@pytest.mark.parametrize("world", ["explicit", "implicit"])
def test_the_kept_epoch_is_the_best_on_validation(world, command, worlds, tmp_path):
    out = tmp_path / "run"
    found = command("train", worlds[world], "--out", out, "--policy", "last", *FAST, "--epochs", 5)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    best = (min if world == "explicit" else max)(line["valid"] for line in lines)
    first = next(line["epoch"] for line in lines if line["valid"] == best)
    assert f"The model is from epoch {first}." in " ".join(found.out.split())


def test_the_same_command_gives_the_same_bytes(command, worlds, tmp_path):
    for name in ("a", "b"):
        command("train", worlds["implicit"], "--out", tmp_path / name, "--policy", "mix:1", *FAST)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second
