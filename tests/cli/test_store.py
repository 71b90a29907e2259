"""`dips store` and `dips import` as people call them."""

from __future__ import annotations

import json

import pytest


def test_the_life_of_a_store(command, trained, tmp_path):
    run = trained("explicit", "--policy", "last", "--size", "3")
    small = trained("explicit", "--policy", "last", "--size", "2")
    store, lists = f"sqlite:{tmp_path}/s.db", tmp_path / "lists.jsonl"
    rows = [{"user": f"u{n}", "items": ["1", "2", "3", "4"]} for n in range(3)]
    lists.write_text("\n".join(map(json.dumps, rows)))
    refused = command("import", run, lists, "--store", store)
    assert "0 events applied, 0 of known users left out, 12 refused" in refused.out
    assert "rating is missing" in refused.err
    done = command("import", run, lists, "--store", store, "--rating", 4)
    assert "12 events applied" in done.out
    assert "3 users in" in done.out
    assert command("store", "check", store).out == f"{store} is whole\n"
    assert command("store", "backup", store, "--out", tmp_path / "b").code == 0
    again = f"sqlite:{tmp_path}/again.db"
    assert command("store", "restore", again, "--from", tmp_path / "b").code == 0
    assert "3 sketches were cut to 2 entries" in command("store", "resize", small, again).out
    gone = command("store", "forget", run, store, "--user", "u1", "--user", "nobody").out
    assert gone.startswith("1 of 2 users had a record")
    assert command("store", "compact", store).code == 0
    read = {
        place: command("sketch", "--store", place, "--user", "u1", "--json").json
        for place in (store, again)
    }
    assert read[store]["entries"] == []
    assert [entry["item"] for entry in read[again]["entries"]] == ["3", "4"]


@pytest.mark.parametrize("words", [["compact"], ["resize", "RUN"], ["forget", "RUN"]], ids=str)
def test_a_store_that_is_not_there_is_not_made(command, trained, tmp_path, words):
    run = trained("explicit", "--policy", "last", "--size", "3")
    more = ["--user", "u1"] if words[0] == "forget" else []
    named = [run if word == "RUN" else word for word in words]
    told = command("store", *named, f"sqlite:{tmp_path}/no/such.db", *more)
    assert told.code == 2
    assert "there is no such store" in told.err
    assert not (tmp_path / "no").exists()


def test_damage_is_told(command, trained, tmp_path):
    store = tmp_path / "s.db"
    lists = tmp_path / "lists.json"
    lists.write_text(json.dumps({f"u{n}": ["1"] for n in range(400)}))
    command("import", trained(), lists, "--store", f"sqlite:{store}", "--rating", 4)
    content = bytearray(store.read_bytes())
    place = content.rindex(b"u399") + 20
    content[place] ^= 1
    store.write_bytes(content)
    found = command("store", "check", f"sqlite:{store}")
    assert found.code == 2
    assert "'u399' is damaged: restore it from a backup" in found.err
