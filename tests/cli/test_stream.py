"""The commands `dips stream` and `dips sketch --store`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from dips.serve.maintenance import check
from dips.serve.stores.registry import open_store


@pytest.fixture
def run(trained):
    return trained("explicit", "--policy", "reservoir", "--size", "3", "--every", "2")


COMMAND = [sys.executable, "-c", "from dips.cli import entry; entry()", "stream"]
GOOD = '{"user": "u", "item": "1", "rating": 3}\n'


def stream(run, store, text, *arguments):
    command = [*COMMAND, str(run), "--store", store, *map(str, arguments)]
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
    text = "\n".join([*lines[:5], "nonsense", *lines[2:]])  # no line break at the end
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


def test_sigterm_ends_the_command_after_the_lines_that_were_read(run, tmp_path):
    store, pipes = f"sqlite:{tmp_path}/s.db", dict.fromkeys(("stdin", "stdout", "stderr"), -1)
    command = [*COMMAND, str(run), "--store", store, "--batch", "100", "--linger", "600"]
    with subprocess.Popen(command, **pipes) as process:
        process.stdin.write(b"nonsense\n")  # refused at the end of a batch, and told then
        process.stdin.write((GOOD * 100 + GOOD[:9]).encode())
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 0, err
    acks = [first, *map(json.loads, out.splitlines())]
    assert [ack["lines"] for ack in acks] == [100, 101]
    assert sum(ack["applied"] for ack in acks) == 100
    assert b"101 lines: 100 events applied, 1 refused; 1 users in" in err
    assert b"stopped by SIGTERM; the lines after these were not read" in err


@pytest.mark.parametrize(("descriptor", "sentence"), [
    (0, "standard input is closed: send events to it, one JSON object in a line"),
    (1, "standard output is closed: acknowledgements are written to it"),
])  # fmt: skip
def test_a_closed_standard_stream_is_one_sentence(descriptor, sentence, run):
    found = subprocess.run(
        [*COMMAND, str(run), "--store", "memory:"], preexec_fn=lambda: os.close(descriptor),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr == f"dips: {sentence}\n"


def test_half_a_line_is_told_and_not_counted(run, tmp_path):
    found = stream(run, f"sqlite:{tmp_path}/s.db", GOOD + GOOD[:9])
    assert found.returncode == 0
    assert json.loads(found.stdout)["lines"] == 1
    assert "the last line is not complete and was not read" in found.stderr
    assert not (tmp_path / "s.db.dead.jsonl").exists()


def test_a_source_that_changed_is_one_sentence(run, tmp_path):
    store = f"sqlite:{tmp_path}/s.db"
    assert stream(run, store, GOOD * 3, "--source", "log").returncode == 0
    found = stream(run, store, GOOD * 2, "--source", "log")
    assert found.returncode == 2
    assert found.stderr.startswith("dips: source 'log': the input has 2 lines, and 3 were read")


@pytest.mark.parametrize("linger", ["inf", "nan", "-1"])
def test_linger_is_checked(linger, run, command, monkeypatch):
    with open(os.devnull) as empty:
        monkeypatch.setattr("sys.stdin", empty)
        found = command("stream", run, "--store", "memory:", "--linger", linger)
    assert (found.code, "linger is" in found.err) == (2, True)


def test_dead_letters_are_printed_as_they_were(run, tmp_path):
    lines = b'\xff\n{"user": "u"}\n{"user": "\xc3\xa9", "item": "1", "rating": 300}\n'
    first = [*COMMAND, str(run), "--store", f"sqlite:{tmp_path}/s.db"]
    assert subprocess.run(first, input=lines, capture_output=True, check=False).returncode == 0
    print_letters = [*COMMAND[:-1], "store", "dead-letters", str(tmp_path / "s.db.dead.jsonl")]
    assert subprocess.run(print_letters, capture_output=True, check=True).stdout == lines


@pytest.mark.parametrize("option", ["--metrics", "--dead-letters"])
def test_outputs_never_replace_the_store_the_input_or_a_directory(run, tmp_path, option):
    path, log = tmp_path / "s.db", tmp_path / "events.jsonl"
    log.write_text(GOOD)
    (tmp_path / "folder").mkdir()
    for name, reason in (
        ("s.db", "is a file of the store"),
        ("s.db-wal", "is a file of the store"),
        ("events.jsonl", "is the input"),
        ("folder", "is a directory"),
    ):
        command = [*COMMAND, run, "--store", f"sqlite:{path}", option, tmp_path / name]
        with log.open() as given:
            found = subprocess.run(
                [*map(str, command)], stdin=given, capture_output=True, text=True, check=False
            )
        assert found.returncode == 2
        assert f"{option} {tmp_path / name} {reason}" in found.stderr
        assert found.stdout == ""
    assert log.read_text() == GOOD
    store = open_store(f"sqlite:{path}")
    assert check(store) == []
    store.close()
