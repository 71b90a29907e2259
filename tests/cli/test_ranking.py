"""Losses with negatives and the GRU, from the shell: trained, evaluated, refused."""

import math

import pytest

from dips.model.trained_model import open_model

FAST = ("--epochs", 1, "--dim", 6, "--batch-size", 256, "--device", "cpu")
SMALL = ("--max-users", 20, "--inner-steps", 2, "--negatives", 8)


@pytest.mark.parametrize(
    "flags",
    [
        ("--policy", "all", "--recommender", "gru"),
        ("--policy", "all", "--recommender", "gru", "--no-tie-embeddings", "--loss", "bpr-max"),
        ("--policy", "last", "--recommender", "gru", "--loss", "top1-max"),
        ("--policy", "all", "--recommender", "sasrec"),
        ("--policy", "hardest", "--recommender", "gru", "--loss", "softmax"),
    ],
    ids=" ".join,
)
def test_gru(flags, command, worlds, tmp_path):
    run = tmp_path / "run"
    found = command("train", worlds["implicit"], "--out", run, *flags, *SMALL, *FAST, "--json")
    assert found.code == 0, found.err
    assert all(0 <= found.json["test"][name] <= 1 for name in ("recall@20", "mrr@20", "ndcg@20"))
    again = command("evaluate", run, "--json")
    assert again.code == 0, again.err
    assert again.json["test"] == pytest.approx(found.json["test"])
    assert open_model(run).spec.kind == flags[3]


@pytest.mark.parametrize("policy", ["last", "reservoir", "hardest", "mix:1", "frequent", "all"])
@pytest.mark.parametrize("loss", ["bpr", "top1"])
def test_ncf_with_negatives_and_every_static_policy(loss, policy, command, worlds, tmp_path):
    found = command(
        "train", worlds["implicit"], "--out", tmp_path / "run", "--policy", policy, "--size", 2,
        "--loss", loss, *SMALL, *FAST, "--json",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert all(math.isfinite(value) for value in found.json["test"].values())


def test_a_coreset_with_negatives(command, worlds, tmp_path):
    """Alone with few users: nothing is in closed form here."""
    found = command(
        "train", worlds["implicit"], "--out", tmp_path / "run", "--policy", "influence", "--size",
        1, "--loss", "bpr", *SMALL, *FAST, "--max-users", 6,
    )  # fmt: skip
    assert found.code == 0, found.err


def test_learned_policies_learn_with_negatives(command, worlds, tmp_path):
    found = command(
        "train", worlds["implicit"], "--out", tmp_path / "run", "--policy", "learned", "--size", 2,
        "--loss", "bpr", "--policy-warmup-epochs", 0, "--policy-freeze-epochs", 0,
        "--baselines", "", *SMALL, *FAST,
    )  # fmt: skip
    assert found.code == 0, found.err


@pytest.mark.parametrize("recommender", ["gru", "sasrec"])
def test_recommenders_that_read_in_order_train_a_policy(recommender, command, worlds, tmp_path):
    """Train with baselines and verdict, save, open, sketch and evaluate."""
    run, world = tmp_path / "run", worlds["implicit"]
    found = command(
        "train", world, "--out", run, "--policy", "learned", "--size", 2, "--recommender",
        recommender, "--policy-warmup-epochs", 0, "--policy-freeze-epochs", 0,
        "--max-users", 20, *FAST, "--json",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert found.json["verdict"]["baseline"] in ("last", "frequent")
    model = open_model(run)
    assert (model.spec.kind, model.policy_spec.name) == (recommender, "learned")
    again = command("evaluate", run, "--json")
    assert again.code == 0, again.err
    assert again.json["test"] == pytest.approx(found.json["test"])
    table = tmp_path / "sketches.csv"
    found = command("sketch", run, world, "--out", table)
    assert found.code == 0, found.err
    assert len(table.read_text().splitlines()) == 1 + 2 * 40


@pytest.mark.parametrize(
    ("world", "flags", "sentence"),
    [
        ("explicit", ("--loss", "bpr"), "loss 'bpr' does not fit the task: use mse, bce or cce"),
        ("implicit", ("--loss", "mse"), "use softmax, bpr, top1, bpr-max or top1-max"),
        ("explicit", ("--recommender", "gru"), "predicts the next item, not ratings"),
        ("explicit", ("--negatives", 5), "negatives is for the implicit task"),
        ("implicit", ("--negatives", -5), "negatives is -5: it must be at least 1"),
    ],
)
def test_unsupported_settings_are_refused(world, flags, sentence, command, worlds, tmp_path):
    found = command("train", worlds[world], "--out", tmp_path / "run", *flags, *FAST)
    assert found.code == 2
    assert sentence in " ".join(found.err.split())
    assert not (tmp_path / "run").exists()
