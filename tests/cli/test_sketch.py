import json

import numpy as np
import polars
import pytest

from dips.data.prepared import open_prepared
from dips.model.trained_model import open_model
from dips.rollout.rollout import rollout
from dips.stream.users import EventColumns, make_stream

COLUMNS = ["user", "t", "position", "item", "rating", "score"]


@pytest.fixture
def table(command, worlds, tmp_path):
    """Write the table of a run and read it back."""

    def make(run, *arguments, world="explicit", ending="parquet"):
        path = tmp_path / f"sketches.{ending}"
        found = command("sketch", run, worlds[world], "--out", path, *arguments)
        assert found.code == 0, found.err
        assert f"are in {path}" in found.out.replace("\n", "")
        if ending == "parquet":
            return polars.read_parquet(path)
        return polars.read_csv(path, schema_overrides={"user": str, "item": str, "score": float})

    return make


def test_last_keeps_the_newest_interactions(trained, table, worlds):
    """`last` at every step: after a history of n events, the positions n - 3, n - 2, n - 1."""
    frame = table(trained("explicit", "--policy", "last", "--size", "3"))
    data = open_prepared(worlds["explicit"])
    assert frame.columns == COLUMNS
    assert frame["user"].n_unique() == data.users
    for user in range(data.users):
        rows = frame.filter(polars.col("user") == data.user_id(user))
        length, events = int(data.lengths[user]), data.events(user)
        assert rows["position"].to_list() == [length - 3, length - 2, length - 1]
        assert rows["t"].to_list() == [length] * 3
        assert rows["item"].to_list() == [data.item_ids[int(i)] for i in data.item[events][-3:]]
        assert rows["rating"].to_list() == data.rating[events][-3:].tolist()
    assert frame["score"].is_finite().all()


def test_parquet_and_csv_hold_the_same(trained, table):
    run = trained("explicit", "--policy", "reservoir", "--size", "3", "--every", "2")
    parquet, csv = table(run), table(run, ending="csv")
    assert csv.columns == parquet.columns
    for name in ("user", "t", "position", "item", "rating"):
        assert csv[name].to_list() == parquet[name].to_list()
    np.testing.assert_allclose(csv["score"], parquet["score"], rtol=1e-5)


@pytest.mark.parametrize("policy", ["reservoir", "hardest"])
def test_the_table_equals_the_rollout(policy, trained, table, worlds):
    run = trained("explicit", "--policy", policy, "--size", "3", "--every", "2", "--seed", "4")
    frame = table(run, "--at", "each")
    data, trace = roll_out_run(run, worlds["explicit"])
    wanted = []
    for row in range(len(trace.event)):
        user, t = int(trace.user[row]), int(trace.step[row])
        first = int(data.starts[user])
        for event in trace.kept[row].tolist():
            if event >= 0:
                item = data.item_ids[int(data.item[event])]
                wanted.append((data.user_id(user), t, event - first, item, data.rating[event]))
    assert frame.select(COLUMNS[:5]).rows() == wanted
    early = frame.filter(polars.col("t") < 5)  # nothing was chosen before t = 5
    assert early["score"].is_nan().all()
    assert frame.filter(polars.col("t") >= 5)["score"].is_finite().all()


def test_the_last_sketch_equals_the_rollout(trained, table, worlds):
    run = trained("explicit", "--policy", "reservoir", "--size", "3", "--every", "2", "--seed", "4")
    frame = table(run)
    data, trace = roll_out_run(run, worlds["explicit"])
    order = np.argsort(-data.lengths, kind="stable")  # streams go from long to short
    for row, user in enumerate(order):
        kept = frame.filter(polars.col("user") == data.user_id(int(user)))
        assert kept["position"].to_list() == trace.final.position[row].tolist()


def roll_out_run(run, path):
    """Return a rollout of the run's policy."""
    trained, data = open_model(run), open_prepared(path)
    stream = make_stream([data], EventColumns.of(data))
    from dips.recommender.stacked import StackedRecommenders

    trace = rollout(
        stream,
        trained.policy,
        size=trained.size,
        schedule=trained.schedule,
        keys=stream.keys([trained.seed]),
        recommenders=StackedRecommenders.of([trained.recommender]),
    )
    return data, trace


def test_sketches_of_unrated_data(trained, table):
    run = trained("implicit", "--policy", "mix:1", "--size", "3")
    frame = table(run, world="implicit")
    assert frame.columns == COLUMNS
    assert frame["rating"].is_nan().all()
    assert frame.height == 3 * 40


def test_the_policy_all_has_no_sketches(command, trained, worlds, tmp_path):
    run = trained("explicit", "--policy", "all")
    found = command("sketch", run, worlds["explicit"], "--out", tmp_path / "x.csv")
    assert found.code == 2
    assert found.err == "dips: the policy 'all' keeps everything: it has no sketches\n"
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--out", "x.txt"], "x.txt: the name must end in .parquet or .csv"),
        (["--out", "x"], "x: the name must end in .parquet or .csv"),
        (["--out", "x.csv", "--at", "noon"], "at is 'noon': choose end or each"),
    ],
)
def test_bad_requests(arguments, reason, command, trained, worlds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = command("sketch", trained(), worlds["explicit"], *arguments)
    assert found.code == 2
    assert found.err == f"dips: {reason}\n"
    assert not list(tmp_path.glob("x*"))


def test_an_interrupted_run_has_no_sketches(command, worlds, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({}))
    found = command("sketch", tmp_path, worlds["explicit"], "--out", tmp_path / "x.csv")
    assert found.code == 2
    assert "is not a finished run: there is no model.safetensors in it" in found.err


@pytest.mark.parametrize(("flags", "shown"), [((), ""), (("--escape-formulas",), "'")])
def test_formulas_are_escaped_on_request(flags, shown, trained, command, tmp_path):
    run = trained("explicit", "--policy", "last", "--size", "3")
    item = open_model(run).item_ids[0]
    (tmp_path / "x.csv").write_text(f"user,item,rating,time\n=u,{item},3,1\n=v,{item},3,2\n")
    found = command("sketch", run, tmp_path / "x.csv", "--out", tmp_path / "out.csv", *flags)
    assert found.code == 0, found.err
    table = polars.read_csv(tmp_path / "out.csv")
    assert table["user"].to_list() == [f"{shown}=u", f"{shown}=v"]
