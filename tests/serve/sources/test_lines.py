"""Lines in, acknowledgements out: the pipe of `dips stream`, without the command."""

from __future__ import annotations

import json
import os
import threading

import pytest

from dips.serve.events import LONGEST_LINE
from dips.serve.keeper import open_keeper
from dips.serve.sources.lines import DeadLetters, batches, follow
from dips.serve.reader import read_store
from dips.serve.stores.base import StoreError, open_store
from tests.serve.models import make_model
from tests.serve.failing import Failing

GOOD = [json.dumps({"user": f"u{n % 3}", "item": "1", "rating": 3}).encode() for n in range(10)]


@pytest.fixture
def dead(tmp_path):
    return DeadLetters(tmp_path / "letters" / "dead.jsonl")


def piped(content: bytes, batch: int = 4, linger: float = 0.0) -> list[list[bytes]]:
    """What comes out of a pipe that holds this."""
    out, into = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(into, content), os.close(into)))
    writer.start()
    found = [lines for lines in batches(out, batch, linger) if lines]
    writer.join()
    os.close(out)
    return found


def test_lines_are_batched():
    assert piped(b"a\nb\nc\nd\ne\n") == [[b"a", b"b", b"c", b"d"], [b"e"]]
    assert [line for lines in piped(b"\n\na\nlast") for line in lines] == [b"", b"", b"a", b"last"]
    assert piped(b"") == []


def test_a_slow_pipe_is_not_waited_for():
    """A line that is there is handed on although more may come; waiting is told before."""
    out, into = os.pipe()
    os.write(into, b"first\nsec")
    source = batches(out, 100, 0.0)
    assert [next(source), next(source), next(source)] == [[], [b"first"], []]
    os.write(into, b"ond\n")
    assert next(source) == [b"second"]
    os.close(into)
    assert list(source) == []
    os.close(out)


def test_an_endless_line_takes_no_memory(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"x" * (5 * LONGEST_LINE) + b"\nnext\n")
    with path.open("rb") as file:
        lines = [line for batch in batches(file.fileno(), 10, 0.0) for line in batch]
    assert len(lines) == 2
    assert LONGEST_LINE < len(lines[0]) <= 2 * LONGEST_LINE + 1
    assert lines[1] == b"next"


def test_one_acknowledgement_a_commit(dead):
    keeper = open_keeper(make_model(), "memory:")
    found = [done.to_dict() for done in follow(keeper, [GOOD[:4], GOOD[4:]], dead)]
    rest = {"repeated": 0, "forgotten": 0, "refused": 0}
    assert found == [{"lines": 4, "applied": 4, **rest}, {"lines": 10, "applied": 6, **rest}]
    assert not dead.path.exists()


def test_acknowledgements_wait_for_the_next_batch_only_if_there_is_one(dead):
    keeper, told, before = open_keeper(make_model(), "memory:"), [], []

    def source():
        for lines in (GOOD[:2], GOOD[2:4], GOOD[4:6], [], [], GOOD[6:], []):
            before.append(len(told))
            yield lines

    for done in follow(keeper, source(), dead):
        told.append(done.lines)
    assert told == [2, 4, 6, 10]
    assert before == [0, 0, 0, 1, 3, 3, 3]  # one ahead of what is decided, two of what is durable


def test_what_is_acknowledged_is_in_the_file(lasting, dead):
    with open_keeper(make_model(), lasting) as keeper:
        for done in follow(keeper, [[line] for line in GOOD], dead):
            there = sum(sketch.seen for sketch in read_store(lasting, ["u0", "u1", "u2"]))
            assert there >= done.lines
        assert done.lines == there == len(GOOD)


def test_a_batch_that_fails_is_not_acknowledged(lasting, dead):
    """Those before it are, those after it are not applied."""
    store = Failing(open_store(lasting))
    with open_keeper(make_model(), store) as keeper:
        store.fail([3])
        told = follow(keeper, [[line] for line in GOOD], dead, "log")
        assert [next(told).lines, next(told).lines] == [1, 2]
        with pytest.raises(StoreError, match="cannot be written"):
            next(told)
        assert (keeper.stats()["applied"], keeper.mark("log")) == (2, 2)
        assert [d.lines for d in follow(keeper, [GOOD], dead, "log")] == [10]
        assert keeper.stats()["applied"] == 10


def test_bad_lines_go_to_the_file(dead):
    lines = [
        b"{",
        GOOD[0],
        b"",
        b'{"user": "u"}',
        b'{"user": "u", "item": 1, "rating": 9}',
        GOOD[1],
    ]
    keeper = open_keeper(make_model(), "memory:")
    (done,) = follow(keeper, [lines], dead)
    assert (done.lines, done.tally.applied, len(done.tally.refused)) == (6, 2, 3)
    letters = [json.loads(line) for line in dead.path.read_text().splitlines()]
    assert [letter["line"] for letter in letters] == [1, 4, 5]
    assert letters[2]["reason"] == "rating 9 is outside the run's scale from 1 to 5"
    assert letters[2]["event"] == lines[4].decode()


def test_a_source_goes_on_where_it_was(lasting, dead):
    """The same lines again, in other batches: nothing is applied twice, even without ids."""
    with open_keeper(make_model(), lasting) as keeper:
        assert [d.lines for d in follow(keeper, [GOOD[:3], GOOD[3:6]], dead, "log")] == [3, 6]
    with open_keeper(make_model(), lasting) as keeper:
        again = list(follow(keeper, [GOOD[:4], GOOD[4:8], GOOD[8:]], dead, "log"))
        assert [(done.lines, done.tally.applied) for done in again] == [(8, 2), (10, 2)]
        assert sum(sketch.seen for sketch in keeper.sketches(["u0", "u1", "u2"])) == 10
        assert [d.tally.applied for d in follow(keeper, [GOOD], dead, "another")] == [10]


def test_bad_lines_that_cannot_be_written_stop_the_batch(tmp_path):
    (tmp_path / "file").write_text("")
    keeper = open_keeper(make_model(), "memory:")
    with pytest.raises(StoreError, match="bad events cannot be written there"):
        list(follow(keeper, [[GOOD[0], b"{"]], DeadLetters(tmp_path / "file" / "x")))
    assert keeper.stats()["applied"] == 0


def test_a_batch_is_acknowledged_before_the_next_one_fails(lasting, tmp_path):
    (tmp_path / "file").write_text("")
    with open_keeper(make_model(), lasting) as keeper:
        blocked = DeadLetters(tmp_path / "file" / "x")
        told = follow(keeper, [GOOD[:2], [GOOD[2], b"{"], GOOD[3:]], blocked, "log")
        assert next(told).lines == 2
        with pytest.raises(StoreError, match="bad events cannot be written there"):
            next(told)
        assert (keeper.stats()["applied"], keeper.mark("log")) == (2, 2)


def test_a_source_that_fails_is_acknowledged_so_far(lasting, dead):
    def source():
        yield from (GOOD[:2], GOOD[2:4], GOOD[4:6])
        raise OSError("gone")

    with open_keeper(make_model(), lasting) as keeper:
        told = follow(keeper, source(), dead)
        assert [next(told).lines for _ in range(3)] == [2, 4, 6]
        with pytest.raises(OSError, match="gone"):
            next(told)
