import json

import pytest

LAST = ("--policy", "last", "--size", "2")


def somebody(run, part="test"):
    rows = (run / "split.csv").read_text().splitlines()
    return next(row.split(",")[0] for row in rows if row.endswith(f",{part}"))


def test_the_story_as_text(command, trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run = trained("explicit", *LAST)
    found = command("story", run, "--user", somebody(run), "--steps", "5")
    assert found.code == 0, found.err
    assert "(test user): last keeps 2" in " ".join(found.out.split())
    assert "the last 5 of" in " ".join(found.out.split())
    assert "Predictions" in found.out
    assert "Refreshes: the lowest scores are dropped" in found.out
    assert max(map(len, found.out.splitlines())) <= 80
    assert "The " in found.out  # titles, not ids


@pytest.mark.parametrize("world", ["explicit", "implicit"])
def test_the_story_as_json(command, trained, world):
    run = trained(world, *LAST)
    user = somebody(run, "train")
    reported = command("story", run, "--user", user, "--steps", "0", "--json").json
    assert (reported["user"], reported["part"], reported["size"]) == (user, "train", 2)
    assert reported["explicit"] == (world == "explicit")
    assert len(reported["steps"]) == reported["length"]
    assert len(reported["refreshes"]) == reported["length"] - 2


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype html>")]
)
def test_files(command, trained, tmp_path, name, start):
    run = trained("implicit", *LAST)
    found = command("story", run, "--user", somebody(run), "--out", tmp_path / name)
    assert found.code == 0, found.err
    assert (tmp_path / name).read_bytes().startswith(start)
    assert found.out == f"the story of user {somebody(run)} is in {tmp_path / name}\n"


def test_moved_data_is_given_by_option(command, trained, worlds, tmp_path):
    run = trained("explicit", *LAST)
    user = somebody(run)
    config = json.loads((run / "config.json").read_text())
    moved = tmp_path / "run"
    moved.mkdir()
    for file in run.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    gone = {**config, "data": str(tmp_path / "gone.safetensors")}
    (moved / "config.json").write_text(json.dumps(gone))
    refused = command("story", moved, "--user", user)
    assert refused.code == 2
    assert "gone.safetensors" in refused.err
    assert refused.err.endswith("give --data\n")
    for other in (("evaluate", moved), ("headroom", moved), ("cross", moved, run)):
        refused = command(*other)
        assert refused.code == 2
        assert refused.err.endswith("if the run's data has moved, give DATA\n")
    found = command("story", moved, "--user", user, "--data", worlds["explicit"], "--json")
    assert found.json == command("story", run, "--user", user, "--json").json


def test_an_unknown_user_is_refused_with_examples(command, trained, tmp_path):
    run = trained("explicit", *LAST)
    found = command("story", run, "--user", "nobody", "--out", tmp_path / "a.html")
    assert found.code == 2
    assert found.out == ""
    assert len(found.err.splitlines()) == 1
    assert "--user nobody: " in found.err
    assert "for example, it has " in found.err
    named = found.err.strip().split("for example, it has ")[1].split(", ")
    assert f"{named[0]},test" in (run / "split.csv").read_text().splitlines()
    assert command("story", run, "--user", named[0]).code == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--out", "story.txt"), "the name must end in .png, .svg or .html"),
        (("--steps", "-1"), "--steps is -1: it must be at least 0"),
    ],
)
def test_bad_input(command, trained, arguments, sentence):
    run = trained("explicit", *LAST)
    found = command("story", run, "--user", somebody(run), *arguments)
    assert found.code == 2
    assert sentence in found.err


def test_a_story_needs_a_run_with_sketches(command, trained, tmp_path):
    found = command("story", tmp_path / "nothing", "--user", "1")
    assert found.code == 2
    assert "there is no such run directory" in found.err
    run = trained("explicit", "--policy", "all")
    found = command("story", run, "--user", somebody(run))
    assert found.code == 2
    assert "keeps everything" in found.err
