"""`--filter-seen` from the shell: trained, stored, evaluated, crossed and refused."""

import json

import numpy as np
import pytest

from dips.data.interactions import from_arrays
from dips.data.prepared import write
from dips.model.trained_model import open_model

USERS, LENGTH, ITEMS = 30, 24, 32
FAST = ("--epochs", 1, "--dim", 6, "--batch-size", 128, "--device", "cpu", "--size", 2)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Return a prepared file of users who meet no item twice."""
    draw = np.random.default_rng(0)
    item = np.concatenate([draw.permutation(ITEMS)[:LENGTH] for _ in range(USERS)])
    user, time = np.repeat(np.arange(USERS), LENGTH), np.tile(np.arange(LENGTH), USERS)
    path = tmp_path_factory.mktemp("once") / "once.safetensors"
    write(from_arrays(user, item, None, time, about={"name": "once"}), path)
    return path


@pytest.mark.parametrize(
    "flags",
    [
        ("--policy", "last"),
        ("--policy", "last", "--inner-loss", "softmax", "--split", "time"),
        ("--policy", "last", "--negatives", 8),
        ("--policy", "all", "--recommender", "gru"),
        ("--policy", "learned", "--policy-warmup-epochs", 0, "--policy-freeze-epochs", 0),
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)
def test_metrics_of_a_run_are_those_of_evaluate(flags, command, once, tmp_path):
    run = tmp_path / "run"
    found = command("train", once, "--out", run, "--filter-seen", *flags, *FAST, "--json")
    assert found.code == 0, found.err
    spec = open_model(run).spec
    assert (spec.filter_seen, spec.filter_sketch) == (True, False)
    written = json.loads((run / "metrics.json").read_text())
    again = command("evaluate", run, "--json")
    assert again.code == 0, again.err
    assert again.json["test"] == pytest.approx(written["test"], abs=1e-7)
    assert json.loads((run / "config.json").read_text())["resolved"]["filter_seen"]


def test_ranks_are_among_items_that_were_not_met(command, once, tmp_path):
    """With 32 items, the target is among the best 20 from the 13th event on, whatever is learned.

    Recall@20 is at least 12 of 24. Where only the sketch is filtered it stays near 20 of 32.
    """
    metrics = {}
    for flag in ("--filter-seen", "--no-filter-seen"):
        run = tmp_path / flag
        found = command(
            "train", once, "--out", run, flag, "--policy", "last", *FAST, "--json",
            "--learning-rate", 1e-6,
        )  # fmt: skip
        assert found.code == 0, found.err
        metrics[flag] = found.json["test"]["recall@20"]
    assert metrics["--filter-seen"] > 0.75
    assert metrics["--no-filter-seen"] < 0.72


def test_studies_use_the_filter_of_the_run(command, once, tmp_path):
    """`cross` and `headroom` score a run as `evaluate` does."""
    runs = [tmp_path / name for name in ("last", "reservoir")]
    for run in runs:
        found = command(
            "train", once, "--out", run, "--filter-seen", "--policy", run.name, *FAST, "--json"
        )
        assert found.code == 0, found.err
    crossed = command("cross", *runs, "--json")
    assert crossed.code == 0, crossed.err
    gained = command("headroom", runs[0], "--json")
    assert gained.code == 0, gained.err
    rows = {(row["recommender"], row["sketches"]): row for row in crossed.json["rows"]}
    for run in runs:
        test = command("evaluate", run, "--json").json["test"]
        scores = {name: rows[run.name, run.name][name] for name in test}
        assert scores == pytest.approx(test, abs=1e-7)
    assert gained.json["rows"][0]["own"]["recall@20"] > 0.8  # 20 of 32 items without the filter


def test_explicit_data_is_refused(command, worlds, tmp_path):
    found = command("train", worlds["explicit"], "--out", tmp_path / "run", "--filter-seen")
    assert found.code != 0
    assert "filter_seen is for items predicted with loss softmax" in " ".join(found.err.split())
    assert not (tmp_path / "run").exists()
