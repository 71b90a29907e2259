"""Batches of lines from pipes and files: their ends, gzip, and the signal to stop."""

from __future__ import annotations

import gzip
import os
import threading

import pytest

from dips.errors import ConfigError, DataError
from dips.serve.events import MAX_LINE_BYTES
from dips.serve.sources.input_lines import InputLines

LINE = b'{"user": "u", "item": "1", "rating": 3}'


def piped(content: bytes, batch: int = 4, linger: float = 0.0) -> list[list[bytes]]:
    """Return the batches of a pipe that holds this content."""
    out, into = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(into, content), os.close(into)))
    writer.start()
    found = [lines for lines in InputLines(out, batch, linger) if lines]
    writer.join()
    os.close(out)
    return found


def test_lines_are_split_into_batches():
    assert piped(b"a\nb\nc\nd\ne\n") == [[b"a", b"b", b"c", b"d"], [b"e"]]
    assert [line for lines in piped(b"\n\na\n") for line in lines] == [b"", b"", b"a"]
    assert piped(b"") == []


def test_an_available_line_is_yielded_at_once():
    """An empty batch is yielded before each wait."""
    out, into = os.pipe()
    os.write(into, b"first\nsec")
    source = iter(InputLines(out, 100, 0.0))
    assert [next(source), next(source), next(source)] == [[], [b"first"], []]
    os.write(into, b"ond\n")
    assert next(source) == [b"second"]
    os.close(into)
    assert list(source) == []
    os.close(out)


def test_a_line_without_end_takes_no_memory(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"x" * (5 * MAX_LINE_BYTES) + b"\nnext\n")
    with path.open("rb") as file:
        lines = [line for batch in InputLines(file.fileno(), 10, 0.0) for line in batch]
    assert len(lines) == 2
    assert len(lines[0]) == MAX_LINE_BYTES + 1
    assert lines[1] == b"next"


def filed(tmp_path, content: bytes) -> tuple[list[bytes], bytes]:
    """Return the lines of a file, and its unfinished end."""
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        given = InputLines(file.fileno(), 10, 0.0)
        return [line for batch in given for line in batch], given.unfinished


@pytest.mark.parametrize("end", [b"nonsense", LINE[:-1], b"{", b"12", b'"text"', b"[1]", b"\xff"])
def test_half_a_line_at_the_end_is_not_read(end, tmp_path):
    assert filed(tmp_path, LINE + b"\n" + end) == ([LINE], end)


def test_a_complete_last_line_needs_no_line_break(tmp_path):
    assert filed(tmp_path, LINE + b"\n" + LINE) == ([LINE, LINE], b"")
    assert filed(tmp_path, LINE + b" \r") == ([LINE + b" \r"], b"")


def test_gzip_is_recognised(tmp_path):
    lines = [b'{"n": %d}' % number for number in range(100_000)]
    text = b"\n".join(lines)
    assert filed(tmp_path, gzip.compress(text)) == (lines, b"")
    halves = gzip.compress(text[:777_777]) + gzip.compress(text[777_777:])
    assert filed(tmp_path, halves + bytes(512)) == (lines, b"")
    assert filed(tmp_path, gzip.compress(b"")) == ([], b"")
    assert filed(tmp_path, b"") == ([], b"")


@pytest.mark.parametrize("lost", [1, 8, 40_000])
def test_lines_of_a_cut_gzip_file_are_read_before_the_error(lost, tmp_path):
    lines = [os.urandom(32).hex().encode() for _ in range(3000)]
    packed = gzip.compress(b"\n".join(lines))
    (tmp_path / "file").write_bytes(packed[:-lost])
    found = []
    with (tmp_path / "file").open("rb") as file:
        source = iter(InputLines(file.fileno(), 10_000, 0.0))
        with pytest.raises(DataError, match="standard input is a gzip file without its end"):
            found.extend(line for batch in source for line in batch)
    assert 1000 < len(found) < len(lines)
    assert found == lines[: len(found)]


def test_a_damaged_gzip_file_is_refused(tmp_path):
    packed = bytearray(gzip.compress(os.urandom(1000)))
    packed[500] ^= 1
    with pytest.raises(DataError, match="standard input is a damaged gzip file"):
        filed(tmp_path, bytes(packed))


def test_a_gzip_bomb_takes_no_memory(tmp_path):
    (line,), _ = filed(tmp_path, gzip.compress(bytes(1 << 28) + b"\n"))
    assert len(line) == MAX_LINE_BYTES + 1


def test_an_input_that_cannot_be_read_is_named(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(DataError, match="standard input cannot be read"):
        list(InputLines(descriptor, 10, 0.0))
    os.close(descriptor)


@pytest.mark.parametrize("linger", [-1.0, float("inf"), float("nan"), 1e9])
def test_linger_is_checked(linger):
    with pytest.raises(ConfigError, match=r"linger is .*: it must be from 0 to 3600 seconds"):
        InputLines(0, 10, linger)


def test_whole_lines_are_yielded_after_the_signal_to_stop():
    """Half a line stays unread; nothing is read after the signal, and nothing is waited for."""
    out, into = os.pipe()
    stop, tell = os.pipe()
    os.write(into, b"a\nb\nc\nhalf")
    given = InputLines(out, 2, 60.0, stop)
    source = iter(given)
    assert next(source) == [b"a", b"b"]
    assert not given.is_stopped()
    os.write(tell, b".")
    os.write(into, b" line\nmore\n")
    assert list(source) == [[b"c"]]
    assert given.is_stopped()
    assert (given.unfinished, os.read(out, 100)) == (b"half", b" line\nmore\n")
    for descriptor in (out, into, stop, tell):
        os.close(descriptor)
