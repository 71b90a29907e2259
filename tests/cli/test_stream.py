"""The commands `dips stream` and `dips sketch --store`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.fixture
def run(trained):
    return trained("explicit", "--policy", "reservoir", "--size", "3", "--every", "2")


def stream(run, store, text, *arguments):
    command = [sys.executable, "-c", "from dips.cli import entry; entry()", "stream", str(run)]
    command += ["--store", store, *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_streamed_sketches_equal_those_of_the_sketch_command(run, worlds, command, tmp_path):
    import polars

    from dips.data.prepared import open_prepared

    data, store = open_prepared(worlds["explicit"]), f"sqlite:{tmp_path}/s.db"
    lines = []
    for user in range(3):
        for seq, place in enumerate(range(data.events(user).start, data.events(user).stop)):
            event = {"user": data.user_id(user), "item": data.item_ids[int(data.item[place])]}
            event |= {"rating": float(data.rating[place]), "time": int(data.time[place])}
            lines.append(json.dumps({**event, "seq": seq}))
    text = "\n".join([*lines[:5], "nonsense", *lines[2:]])
    found = stream(run, store, text, "--batch", 10, "--metrics", tmp_path / "dips.prom")
    assert found.returncode == 0, found.stderr
    acks = [json.loads(line) for line in found.stdout.splitlines()]
    assert acks[-1]["lines"] == len(lines) + 4
    assert sum(ack["applied"] for ack in acks) == len(lines)
    assert sum(ack["repeated"] for ack in acks) == 3
    assert sum(ack["refused"] for ack in acks) == 1
    assert f"{len(lines)} events applied, 1 refused; 3 users in {store}" in found.stderr
    counted = (tmp_path / "dips.prom").read_text()
    for outcome, count in (("applied", len(lines)), ("repeated", 3), ("refused", 1)):
        assert f'dips_events_total{{outcome="{outcome}"}} {count}\n' in counted
    (letter,) = (tmp_path / "s.db.dead.jsonl").read_text().splitlines()
    assert json.loads(letter)["event"] == "nonsense"
    command("sketch", run, worlds["explicit"], "--out", tmp_path / "x.parquet")
    table = polars.read_parquet(tmp_path / "x.parquet")
    for user in range(3):
        name = data.user_id(user)
        rows = table.filter(polars.col("user") == name)
        back = command("sketch", "--store", store, "--user", name, "--json").json
        assert [entry["position"] for entry in back["entries"]] == rows["position"].to_list()
        assert [entry["item"] for entry in back["entries"]] == rows["item"].to_list()
        shown = command("sketch", "--store", store, "--user", name).out
        assert f"{name}: {data.lengths[user]} interactions, policy version 1" in shown


def test_durable_lines_are_acknowledged_before_an_error(run, tmp_path):
    (tmp_path / "file").write_text("")
    good = '{"user": "u", "item": "1", "rating": 3}'
    arguments = ("--batch", 2, "--linger", 60, "--dead-letters", tmp_path / "file" / "x")
    found = stream(run, f"sqlite:{tmp_path}/s.db", f"{good}\n{good}\n{good}\n{{\n", *arguments)
    assert found.returncode == 2
    assert [json.loads(line)["lines"] for line in found.stdout.splitlines()] == [2]
    assert "invalid events cannot be written there" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--store", "sqlite:none.db"], "with --store give --user, and neither a run nor data"),
        (["--store", "sqlite:none.db", "--user", "u"], "sqlite:none.db: there is no such store"),
        ([], "give a run, data and --out FILE; or --store URL and --user U"),
    ],
)
def test_invalid_arguments_of_sketch(arguments, reason, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = command("sketch", *arguments)
    assert found.code == 2
    assert found.err.startswith(f"dips: {reason}")
    assert not list(tmp_path.glob("none*"))


def test_invalid_arguments_of_stream(run, command, tmp_path):
    for store, where, reason in [
        ("nowhere:x", run, "store 'nowhere:x': choose memory: or sqlite:PATH"),
        ("memory:", tmp_path, "is not a finished run"),
    ]:
        found = command("stream", where, "--store", store)
        assert found.code == 2
        assert reason in found.err
        assert found.out == ""
