"""The examples of docs/production.md run, and its table of sizes is that of records."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from dips.cli.main import main
from dips.serve.records import UserRecords, encode
from tests.serve.models import make_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text()


def test_the_page_is_found():
    assert "(docs/production.md)" in (ROOT / "README.md").read_text()


def test_every_example_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_model("learned", 8, items=60).save(tmp_path / "runs" / "learned-8")
    event = {"user": "alice", "item": "17", "rating": 5, "time": 1_700_000_000, "seq": 1}
    (tmp_path / "events.jsonl").write_text(json.dumps(event))
    (tmp_path / "lists.jsonl").write_text('{"user": "bob", "items": ["1", "2"]}')
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.S)
    assert [language for language, _ in blocks] == ["sh", "python", "sh"]
    for language, code in blocks:
        if language == "python":
            exec(compile(code, "docs/production.md", "exec"), {"__name__": "production"})
            continue
        for line in code.splitlines():
            if line.startswith("dips train"):
                continue  # the model is not trained
            command, _, source = line.partition(" < ")
            with open(source or "/dev/null") as given:
                monkeypatch.setattr("sys.stdin", given)
                with pytest.raises(SystemExit) as left:
                    main(shlex.split(command)[1:])
            assert not left.value.code, line
    printed = capfd.readouterr().out
    assert '{"lines": 1, "applied": 1, "repeated": 0, "forgotten": 0, "refused": 0}' in printed
    assert "alice: 1 interactions, policy version 1" in printed


KINDS = {"no ratings": (1.0, 1), "stars": (4.5, 1), "stars, items repeat": (4.5, 2)}


@pytest.mark.parametrize(("name", "rating", "repeats"), [
    *((name, *kind) for name, kind in KINDS.items()), ("any ratings", 4.3, 1),
])  # fmt: skip
def test_the_table_of_record_sizes(name, rating, repeats):
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
    expected = [int(cell) for cell in row.split("|")[2:7]]
    found = []
    for size in (2, 4, 8, 16, 32):
        one, shape = np.ones(1, np.int64), (1, size)
        full = np.full(shape, 1_700_000_000)
        rows = UserRecords(
            size * one, 0 * one, one, 1000 * one, one, np.full(shape, 2**24 - 1),
            np.full(shape, rating, np.float32), full, np.arange(size)[None],
            np.full(shape, repeats), np.zeros(shape, np.int64),
        )  # fmt: skip
        found.append(len(encode([b"u"], rows)[0]))
    assert found == expected
