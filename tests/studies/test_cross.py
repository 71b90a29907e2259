"""Runs crossed over several splits; what they are called."""

import numpy as np
import pytest

from dips import api
from dips.data.synthetic import stream
from dips.studies.cross import cross_runs, run_labels
from dips.training.config import TrainConfig

WORLD = stream(users=40, items=64, events=12)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    settings = TrainConfig.of(epochs=1, dim=6, batch_size=256, device="cpu")
    table = api.compare(
        WORLD, ["last", "reservoir"], [2], folds=2, out=out,
        config=lambda policy: settings.but(policy=policy),
    )  # fmt: skip
    return out, table


def test_crossed_scores_are_pooled_over_splits(results):
    out, table = results
    runs = [
        (out / f"runs/last-k2-t1-f{s}-r0", out / f"runs/reservoir-k2-t1-f{s}-r0") for s in (0, 1)
    ]
    seen = []
    found = cross_runs(
        runs, ("last", "reservoir"), data=WORLD, on_progress=lambda *done: seen.append(done)
    )
    assert seen == [(1, 2), (2, 2)]
    assert (found["splits"], found["users"], found["metric"]) == (2, 16, "rmse")
    assert found["kept_policies"] == {"last": ["last"] * 2, "reservoir": ["reservoir"] * 2}
    for policy in ("last", "reservoir"):
        row = next(
            r for r in found["rows"] if (r["recommender"], r["sketches"]) == (policy, policy)
        )
        own = [r["test"]["rmse"] for r in table.rows if r["policy"] == policy]
        assert row["rmse"] == pytest.approx(np.mean(own), abs=1e-6)
    (pair,) = table.paired
    whole = next(row for row in found["effects"] if row["changed"] == "both")
    assert whole["diff"] == pytest.approx(-pair["diff"], abs=1e-6)  # last minus reservoir there
    assert whole["low"] == pytest.approx(-pair["high"], abs=1e-3)


def test_run_labels_are_distinct(results):
    out, _ = results
    first, second = out / "runs/last-k2-t1-f0-r0", out / "runs/reservoir-k2-t1-f0-r0"
    assert run_labels([first, second]) == ["last", "reservoir"]
    assert run_labels([first, out / "runs/last-k2-t1-f1-r0"]) == [
        "last-k2-t1-f0-r0",
        "last-k2-t1-f1-r0",
    ]
    assert run_labels([first, first]) == [str(first)] * 2
