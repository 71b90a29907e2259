"""Dead letters: byte for byte, in whole rows, in files of bounded size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dips.errors import DataError
from dips.serve import dead_letters
from dips.serve.dead_letters import DeadLetters, read_dead_letters
from dips.serve.stores.base import StoreError


@given(lines=st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)))
def test_lines_are_read_back_byte_for_byte(lines, tmp_path_factory):
    path = tmp_path_factory.mktemp("dead") / "dead.jsonl"
    DeadLetters(path).write((number, "why", line) for number, line in enumerate(lines))
    assert (list(read_dead_letters(path)) if lines else []) == lines
    assert path.exists() == bool(lines)
    for row in path.read_text().splitlines() if lines else ():
        assert json.loads(row)["reason"] == "why"


@pytest.mark.parametrize("kept", [1, 5, 12, 40])
def test_half_a_row_is_not_continued(kept, tmp_path):
    """A crash may leave half a row; the next one is a row of its own."""
    path = tmp_path / "dead.jsonl"
    dead = DeadLetters(path)
    dead.write([(1, "why", b"first")])
    dead.write([(2, "why", b"second, which is not acknowledged")])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:kept])
    dead.write([(2, "why", b"second"), (3, "why", b"third")])
    assert list(read_dead_letters(path)) == [b"first", b"second", b"third"]


def test_a_full_file_is_renamed_and_none_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(dead_letters, "MAX_FILE_BYTES", 100)
    dead = DeadLetters(tmp_path / "dead.jsonl")
    (tmp_path / "dead.jsonl.2").write_text("of the user")
    for number in range(5):
        dead.write([(number, "why", b"x" * 40)])
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["dead.jsonl", "dead.jsonl.1", "dead.jsonl.2", "dead.jsonl.3"]
    assert (tmp_path / "dead.jsonl.2").read_text() == "of the user"
    full = ["dead.jsonl.1", "dead.jsonl.3", "dead.jsonl"]
    assert [len(list(read_dead_letters(tmp_path / name))) for name in full] == [2, 2, 1]


def test_a_file_that_was_renamed_by_others_is_left_alone(tmp_path):
    dead = DeadLetters(tmp_path / "dead.jsonl")
    dead.write([(1, "why", b"first")])
    (tmp_path / "dead.jsonl").rename(tmp_path / "old")
    dead.write([(2, "why", b"second")])
    assert list(read_dead_letters(tmp_path / "old")) == [b"first"]
    assert list(read_dead_letters(tmp_path / "dead.jsonl")) == [b"second"]


@pytest.mark.parametrize("row", [b"text", b"[]", b'{"line": 1}', b'{"event": 1}', b"\xff"])
def test_another_file_is_refused(row, tmp_path):
    (tmp_path / "x").write_bytes(row + b"\n")
    with pytest.raises(DataError, match=r"x, line 1: it is not a dead letter"):
        list(read_dead_letters(tmp_path / "x"))
    with pytest.raises(DataError, match="no: cannot be read"):
        list(read_dead_letters(tmp_path / "no"))


def test_a_directory_is_one_sentence(tmp_path):
    with pytest.raises(StoreError, match="invalid events cannot be written there"):
        DeadLetters(tmp_path).write([(1, "why", b"x")])
