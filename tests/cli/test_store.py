"""The commands `dips store` and `dips import`."""

from __future__ import annotations

import json
import sqlite3

import pytest

from dips.serve.keeper import open_keeper
from dips.serve.stores.commit_mark import Commit, CommitMark


def test_import_check_backup_restore_resize_and_forget(command, trained, tmp_path):
    run = trained("explicit", "--policy", "last", "--size", "3")
    small = trained("explicit", "--policy", "last", "--size", "2")
    store, lists = f"sqlite:{tmp_path}/s.db", tmp_path / "lists.jsonl"
    rows = [{"user": f"u{n}", "items": ["1", "2", "3", "4"]} for n in range(3)]
    lists.write_text("\n".join(map(json.dumps, rows)))
    refused = command("import", run, lists, "--store", store)
    assert "0 events applied, 0 of known users skipped, 12 refused" in refused.out
    assert "rating is missing" in refused.err
    done = command("import", run, lists, "--store", store, "--rating", 4)
    assert "12 events applied" in done.out
    assert "3 users in" in done.out
    assert command("store", "check", store).out == f"{store} is intact\n"
    assert command("store", "backup", store, "--out", tmp_path / "b").code == 0
    again = f"sqlite:{tmp_path}/again.db"
    assert command("store", "restore", again, "--from", tmp_path / "b").code == 0
    assert "3 sketches were reduced to 2 entries" in command("store", "resize", small, again).out
    erased = command("store", "forget", run, store, "--user", "u1", "--user", "nobody").out
    assert erased.startswith("1 of 2 users had a record")
    assert command("store", "compact", store).code == 0
    read = {
        place: command("sketch", "--store", place, "--user", "u1", "--json").json
        for place in (store, again)
    }
    assert read[store]["entries"] == []
    assert [entry["item"] for entry in read[again]["entries"]] == ["3", "4"]


def test_readmit(command, trained, tmp_path):
    run, store = trained("explicit", "--policy", "last", "--size", "3"), f"sqlite:{tmp_path}/s.db"
    with open_keeper(run, store) as keeper:
        keeper.observe("u", "1", 3, seq=2**61)
    found = command("store", "readmit", store, "--user", "u", "--last-seq", 7)
    again = f"their events are accepted by {store} again\n"
    assert found.out == f"1 of 1 users were known; {again}"
    nobody = command("store", "readmit", store, "--user", "nobody")
    assert nobody.out == f"0 of 1 users were known; {again}"
    assert command("sketch", "--store", store, "--user", "u", "--json").json["last"] == 7
    assert command("store", "readmit", store, "--user", "u").code == 0
    assert command("sketch", "--store", store, "--user", "u", "--json").json["last"] is None
    refused = command("store", "readmit", store, "--user", "u", "--last-seq", -1)
    assert (refused.code, "seq must be a whole number from 0 on" in refused.err) == (2, True)


@pytest.mark.parametrize(
    "words", [["compact"], ["resize", "RUN"], ["forget", "RUN"], ["readmit"]], ids=str
)
def test_a_store_that_does_not_exist_is_not_created(command, trained, tmp_path, words):
    run = trained("explicit", "--policy", "last", "--size", "3")
    more = ["--user", "u1"] if words[0] in ("forget", "readmit") else []
    named = [run if word == "RUN" else word for word in words]
    found = command("store", *named, f"sqlite:{tmp_path}/no/such.db", *more)
    assert found.code == 2
    assert "there is no such store" in found.err
    assert not (tmp_path / "no").exists()


def test_damage_is_reported_and_stops_its_user_only(command, trained, tmp_path):
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
    small = trained("explicit", "--policy", "last", "--size", "2")
    resized = command("store", "resize", small, f"sqlite:{store}")
    assert resized.code == 2
    assert "sketches were reduced to 2 entries" in resized.out
    assert "the record of user 'u399' is damaged" in resized.err
    again = command("import", small, lists, "--store", f"sqlite:{store}", "--rating", 4)
    assert "0 events applied, 399 of known users skipped, 1 refused" in again.out
    assert "the record of user 'u399' is damaged" in again.err


def test_missing_commits_are_reported_and_accepted(command, trained, tmp_path):
    run, lists, store = trained(), tmp_path / "lists.json", f"sqlite:{tmp_path}/s.db"
    lists.write_text(json.dumps({"u": ["1"]}))
    command("import", run, lists, "--store", store, "--rating", 4)
    mark = CommitMark(tmp_path / "s.db")
    connection = sqlite3.connect(tmp_path / "s.db")
    name, number = connection.execute("SELECT store, number FROM state").fetchone()
    connection.close()
    mark.write(Commit(name, number + 7))
    mark.close()
    message = f"lacks commits {number + 1} to {number + 7}, which were acknowledged"
    for words in (["check", store], ["compact", store]):
        found = command("store", *words)
        assert found.code == 2
        assert message in found.err
        assert f"'dips store accept {store}' and send the events since commit" in found.err
    assert command("store", "accept", store).code == 0
    assert command("store", "check", store).code == 0
    assert command("store", "compact", store).code == 0


def test_a_store_is_not_replaced_by_its_backup(command, trained, tmp_path):
    lists, path = tmp_path / "lists.json", tmp_path / "s.db"
    lists.write_text(json.dumps({"u": ["1"]}))
    command("import", trained(), lists, "--store", f"sqlite:{path}", "--rating", 4)
    whole = path.read_bytes()
    found = command("store", "backup", f"sqlite:{path}", "--out", path)
    assert found.code == 2
    assert "s.db is a store or a file of one: write the backup to a new, plain file" in found.err
    assert path.read_bytes() == whole


def test_a_directory_is_no_store_and_a_missing_backup_makes_none(command, tmp_path):
    found = command("store", "check", f"sqlite:{tmp_path}")
    assert found.code == 2
    assert "is no file: give the path of a store" in found.err
    found = command("store", "restore", f"sqlite:{tmp_path}/new.db", "--from", tmp_path / "none")
    assert found.code == 2
    assert "there is no such file; give what 'dips store backup' wrote" in found.err
    assert not (tmp_path / "new.db").exists()
