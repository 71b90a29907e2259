"""Runs crossed over several splits; what they are called."""

import numpy as np
import pytest

from dips import api
from dips.data.synthetic import stream
from dips.studies.cross import cross_runs, labels
from dips.training.config import TrainConfig

WORLD = stream(users=40, items=64, events=12)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    settings = TrainConfig(epochs=1, dim=6, batch=256, device="cpu")
    table = api.compare(
        WORLD, ["last", "reservoir"], [2], seeds=[0, 1], out=out,
        config=lambda policy: settings.but(policy=policy),
    )  # fmt: skip
    return out, table


def test_splits_are_pooled(results):
    out, table = results
    runs = [(out / f"runs/last-k2-t1-s{s}", out / f"runs/reservoir-k2-t1-s{s}") for s in (0, 1)]
    seen = []
    found = cross_runs(
        runs, ("last", "reservoir"), data=WORLD, watch=lambda *done: seen.append(done)
    )
    assert seen == [(1, 2), (2, 2)]
    assert (found["splits"], found["users"], found["metric"]) == (2, 16, "rmse")
    assert found["kept_policies"] == {"last": ["last"] * 2, "reservoir": ["reservoir"] * 2}
    for policy in ("last", "reservoir"):
        row = next(r for r in found["rows"] if (r["reader"], r["sketches"]) == (policy, policy))
        own = [r["test"]["rmse"] for r in table.rows if r["policy"] == policy]
        assert row["rmse"] == pytest.approx(np.mean(own), abs=1e-6)
    (pair,) = table.paired
    whole = next(row for row in found["effects"] if row["changed"] == "both")
    assert whole["diff"] == pytest.approx(-pair["diff"], abs=1e-6)  # last minus reservoir there
    assert whole["low"] == pytest.approx(-pair["high"], abs=1e-3)


def test_runs_are_called_by_what_tells_them_apart(results):
    out, _ = results
    first, second = out / "runs/last-k2-t1-s0", out / "runs/reservoir-k2-t1-s0"
    assert labels([first, second]) == ["last", "reservoir"]
    assert labels([first, out / "runs/last-k2-t1-s1"]) == ["last-k2-t1-s0", "last-k2-t1-s1"]
    assert labels([first, first]) == [str(first)] * 2
