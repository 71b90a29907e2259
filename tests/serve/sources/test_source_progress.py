"""A log that is read again: longer, renamed, compressed, cut, rewritten."""

from __future__ import annotations

import gzip
import json
import os
from itertools import islice

import pytest

from dips.errors import DataError
from dips.serve.dead_letters import DeadLetters
from dips.serve.keeper import open_keeper
from dips.serve.sources.input_lines import InputLines
from dips.serve.sources.lines import stream_lines
from dips.serve.sources.source_progress import SourceProgress
from tests.serve.models import make_model


@pytest.fixture
def keeper():
    with open_keeper(make_model(), "memory:") as keeper:
        yield keeper


@pytest.fixture
def log(tmp_path):
    return tmp_path / "events.jsonl"


def line(number: int) -> str:
    return json.dumps({"user": f"u{number % 3}", "item": str(number % 5), "rating": 3, "n": number})


def text(*numbers: int) -> str:
    return "".join(line(number) + "\n" for number in numbers)


def stream(keeper, path, name="log", *, pipe=False, batch=2) -> int:
    """Stream a file; return how many events were applied, of which none is refused."""
    if pipe:
        descriptor, into = os.pipe()
        os.write(into, path.read_bytes())
        os.close(into)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        given = InputLines(descriptor, batch, 0.0)
        dead = DeadLetters(path.with_name("dead"))
        results = [r for _, r in stream_lines(keeper, given, dead, name, is_file=not pipe)]
    finally:
        os.close(descriptor)
    assert not any(result.refused for result in results)
    return sum(result.applied for result in results)


@pytest.mark.parametrize("pipe", [False, True])
def test_a_half_written_line_is_read_when_it_is_whole(keeper, log, pipe):
    log.write_text(text(0, 1) + line(2)[:20])
    assert stream(keeper, log, pipe=pipe) == 2
    log.write_text(text(0, 1, 2) + line(3))  # the last line is whole but for its line break
    assert stream(keeper, log, pipe=pipe) == 2
    log.write_text(text(0, 1, 2, 3, 4))
    assert stream(keeper, log, pipe=pipe) == 1
    assert stream(keeper, log, pipe=pipe) == 0


def test_rotated_files_are_read_to_their_ends(keeper, log):
    """The old file is renamed and compressed, the new one begins: no line is lost or repeated."""
    log.write_text(text(0, 1, 2))
    assert stream(keeper, log) == 3
    with log.open("a") as file:
        file.write(text(3, 4))
    old = log.rename(log.with_name("events.jsonl.1"))
    log.write_text(text(5))
    assert stream(keeper, log) == 1
    packed = log.with_name("events.jsonl.1.gz")
    packed.write_bytes(gzip.compress(old.read_bytes()))
    assert stream(keeper, packed) == 2
    assert [stream(keeper, path) for path in (log, old, packed)] == [0, 0, 0]
    log.write_text(text(5, 6, 7))
    assert stream(keeper, log, batch=100) == 2
    assert keeper.stats()["applied"] == 8


def test_a_new_file_in_place_of_the_old_one_is_read(keeper, log):
    log.write_text(text(0, 1, 2))
    assert stream(keeper, log) == 3
    log.write_text(text(3))
    assert stream(keeper, log) == 1


def test_a_cut_file_is_refused(keeper, log):
    log.write_text(text(0, 1, 2))
    stream(keeper, log)
    log.write_text(text(0, 1))
    reason = "source 'log': the input has 2 lines, and 3 were read from it before: it was cut"
    with pytest.raises(DataError, match=reason):
        stream(keeper, log)


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_a_rewritten_file_is_refused(keeper, log, batch):
    """It has the first line and the length of the one before."""
    log.write_text(text(0, 1, 2))
    stream(keeper, log)
    log.write_text(text(0, 7, 8, 9, 10))
    reason = "source 'log': the first 3 lines of the input are not those that were read before"
    with pytest.raises(DataError, match=reason):
        stream(keeper, log, batch=batch)
    assert keeper.stats()["applied"] == 3
    assert stream(keeper, log, "another") == 5


def test_a_pipe_begins_where_it_began(keeper, log):
    """Otherwise lines that were read before would be applied again."""
    log.write_text(text(0, 1, 2))
    stream(keeper, log, pipe=True)
    log.write_text(text(1, 2, 3))
    with pytest.raises(DataError, match="source 'log': the first line of the pipe is not the one"):
        stream(keeper, log, pipe=True)
    assert stream(keeper, log, "another", pipe=True) == 3


def test_a_stop_before_the_new_lines_is_no_error(keeper, log):
    log.write_text(text(*range(10)))
    stream(keeper, log)
    lines = log.read_bytes().splitlines()
    dead = DeadLetters(log.with_name("dead"))
    again = stream_lines(keeper, [lines[:4]], dead, "log", is_stopped=lambda: True)
    assert list(again) == []


def test_names_do_not_collide(keeper, log):
    log.write_text(text(0, 1))
    names = ["log", "files/log", "lines/log", "log/", "log\0"]
    assert [stream(keeper, log, name) for name in names] == [2] * len(names)
    assert [stream(keeper, log, name) for name in names] == [0] * len(names)


def test_a_name_that_is_no_unicode_is_refused(keeper, log):
    with pytest.raises(DataError, match="source is not valid Unicode"):
        SourceProgress("\udcff", keeper.offset, is_file=True)


def test_lines_without_a_name_are_never_skipped(keeper, log):
    log.write_text(text(0, 1))
    assert [stream(keeper, log, None) for _ in range(2)] == [2, 2]


def test_lines_after_a_failure_are_read_again(keeper, log):
    log.write_text(text(*range(9)))
    with log.open("rb") as file:
        dead = DeadLetters(log.with_name("dead"))
        given = InputLines(file.fileno(), 2, 0.0)
        first = list(islice(stream_lines(keeper, given, dead, "log", is_file=True), 2))
    assert [lines for lines, _ in first] == [2, 4]
    durable = keeper.stats()["applied"]
    assert stream(keeper, log) == 9 - durable
