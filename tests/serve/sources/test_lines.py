"""Events as JSON lines: acknowledgements, dead letters, offsets."""

from __future__ import annotations

import json

import pytest

from dips.serve.dead_letters import DeadLetters
from dips.serve.keeper import open_keeper
from dips.serve.reader import read_sketches
from dips.serve.sources.lines import stream_lines
from dips.serve.stores.base import StoreError
from dips.serve.stores.registry import open_store
from tests.serve.failing import Failing
from tests.serve.models import make_model

GOOD = [json.dumps({"user": f"u{n % 3}", "item": "1", "rating": 3}).encode() for n in range(10)]


@pytest.fixture
def dead(tmp_path):
    return DeadLetters(tmp_path / "letters" / "dead.jsonl")


def test_each_commit_has_one_acknowledgement(dead):
    keeper = open_keeper(make_model(), "memory:")
    found = [
        {"lines": lines, **result.counts()}
        for lines, result in stream_lines(keeper, [GOOD[:4], GOOD[4:]], dead)
    ]
    rest = {"repeated": 0, "forgotten": 0, "refused": 0}
    assert found == [{"lines": 4, "applied": 4, **rest}, {"lines": 10, "applied": 6, **rest}]
    assert not dead.path.exists()


def test_an_acknowledgement_waits_for_the_next_batch_only_if_there_is_one(dead):
    keeper, lines, before = open_keeper(make_model(), "memory:"), [], []

    def source():
        for batch in (GOOD[:2], GOOD[2:4], GOOD[4:6], [], [], GOOD[6:], []):
            before.append(len(lines))
            yield batch

    for end, _ in stream_lines(keeper, source(), dead):
        lines.append(end)
    assert lines == [2, 4, 6, 10]
    assert before == [0, 0, 0, 1, 3, 3, 3]  # one batch is being applied, one is in flight


def test_acknowledged_lines_are_durable(durable, dead):
    with open_keeper(make_model(), durable) as keeper:
        for lines, _ in stream_lines(keeper, [[line] for line in GOOD], dead):
            seen = sum(sketch.seen for sketch in read_sketches(durable, ["u0", "u1", "u2"]))
            assert seen >= lines
        assert lines == seen == len(GOOD)


def test_a_batch_that_fails_is_not_acknowledged(durable, dead):
    """Batches before it are acknowledged; batches after it are not applied."""
    store = Failing(open_store(durable))
    with open_keeper(make_model(), store) as keeper:
        store.fail([3])
        acks = stream_lines(keeper, [[line] for line in GOOD], dead, "log")
        assert [next(acks)[0], next(acks)[0]] == [1, 2]
        with pytest.raises(StoreError, match="cannot be written"):
            next(acks)
        assert keeper.stats()["applied"] == 2
        assert [lines for lines, _ in stream_lines(keeper, [GOOD], dead, "log")] == [10]
        assert keeper.stats()["applied"] == 10


def test_invalid_lines_go_to_the_dead_letter_file(dead):
    lines = [
        b"{",
        GOOD[0],
        b"",
        b'{"user": "u"}',
        b'{"user": "u", "item": 1, "rating": 9}',
        GOOD[1],
    ]
    keeper = open_keeper(make_model(), "memory:")
    ((end, result),) = stream_lines(keeper, [lines], dead)
    assert (end, result.applied, len(result.refused)) == (6, 2, 3)
    assert keeper.stats()["refused"] == keeper.metrics.events["refused"] == 3
    letters = [json.loads(line) for line in dead.path.read_text().splitlines()]
    assert [letter["line"] for letter in letters] == [1, 4, 5]
    assert letters[2]["reason"] == "rating 9 is outside the run's scale from 1 to 5"
    assert letters[2]["event"] == lines[4].decode()


def test_a_named_source_continues_after_its_durable_lines(durable, dead):
    """The same lines in other batches are applied once, even without ids."""
    with open_keeper(make_model(), durable) as keeper:
        assert [lines for lines, _ in stream_lines(keeper, [GOOD[:3], GOOD[3:6]], dead, "log")] == [
            3,
            6,
        ]
    with open_keeper(make_model(), durable) as keeper:
        again = list(stream_lines(keeper, [GOOD[:4], GOOD[4:8], GOOD[8:]], dead, "log"))
        assert [(lines, result.applied) for lines, result in again] == [(8, 2), (10, 2)]
        assert sum(sketch.seen for sketch in keeper.sketches(["u0", "u1", "u2"])) == 10
        assert [r.applied for _, r in stream_lines(keeper, [GOOD], dead, "another")] == [10]


def test_dead_letters_that_cannot_be_written_stop_the_batch(tmp_path):
    (tmp_path / "file").write_text("")
    keeper = open_keeper(make_model(), "memory:")
    with pytest.raises(StoreError, match="invalid events cannot be written there"):
        list(stream_lines(keeper, [[GOOD[0], b"{"]], DeadLetters(tmp_path / "file" / "x")))
    assert keeper.stats()["applied"] == 0


def test_a_batch_is_acknowledged_before_the_next_one_fails(durable, tmp_path):
    (tmp_path / "file").write_text("")
    with open_keeper(make_model(), durable) as keeper:
        blocked = DeadLetters(tmp_path / "file" / "x")
        acks = stream_lines(keeper, [GOOD[:2], [GOOD[2], b"{"], GOOD[3:]], blocked, "log")
        assert next(acks)[0] == 2
        with pytest.raises(StoreError, match="invalid events cannot be written there"):
            next(acks)
        assert keeper.stats()["applied"] == 2


def test_durable_lines_are_acknowledged_before_an_error_of_the_source(durable, dead):
    def source():
        yield from (GOOD[:2], GOOD[2:4], GOOD[4:6])
        raise OSError("gone")

    with open_keeper(make_model(), durable) as keeper:
        acks = stream_lines(keeper, source(), dead)
        assert [next(acks)[0] for _ in range(3)] == [2, 4, 6]
        with pytest.raises(OSError, match="gone"):
            next(acks)
