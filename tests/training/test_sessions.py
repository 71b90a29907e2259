"""Sessions of four: the sketch of the session's start, the session so far, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dips.data.interactions import Interactions
from dips.policy.registry import make_policy
from dips.rollout.rollout import FullHistoryRollout, rollout
from dips.rollout.trace import StoredTrace, Trace
from dips.stream.schedule import Schedule
from dips.stream.users import Stream
from dips.training.sessions import Sessions, session_schedule, sessions

World = Callable[..., Interactions]
LENGTHS = [9, 3, 17, 1, 12]


def _roll_out(stream: Stream, policy: str, size: int, epoch: int = 0) -> Trace:
    return rollout(
        stream,
        make_policy(policy, size=size),
        size=size,
        schedule=session_schedule(size, stream.longest),
        keys=stream.keys([0], epoch),
    )


def _positions(trace: StoredTrace) -> list[tuple[int, list[int]]]:
    """Step, and which of a user's own events are seen there; -1 where a place is empty."""
    rows = torch.arange(len(trace.event))
    first = (trace.event - trace.step)[:, None]
    seen = trace.sketches(rows)
    own = torch.where(seen >= 0, seen - first, -1)
    return list(zip(trace.step.tolist(), own.tolist(), strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_the_last_before_the_session_and_the_session(
    size: int, world: World, stream_of: Callable[..., Stream]
) -> None:
    stream = stream_of([world(LENGTHS, items=20, explicit=False)])
    found = _positions(sessions(_roll_out(stream, "last", size)))
    assert len(found) == sum(LENGTHS)
    for step, seen in found:
        start = step - step % 4
        before = list(range(max(0, start - size), start))
        so_far = list(range(start, step))
        assert [p for p in seen[:size] if p >= 0] == before
        assert seen[size:] == so_far + [-1] * (3 - len(so_far))


def test_no_sketch_is_the_session_alone(world: World, stream_of: Callable[..., Stream]) -> None:
    stream = stream_of([world(LENGTHS, items=20, explicit=False)])
    for step, seen in _positions(sessions(FullHistoryRollout(stream).trace)):
        so_far = list(range(step - step % 4, step))
        assert seen == so_far + [-1] * (3 - len(so_far))


def test_nothing_of_the_session_is_in_the_sketch_of_a_sample(
    world: World, stream_of: Callable[..., Stream]
) -> None:
    stream = stream_of([world([40, 33], items=20, explicit=False)])
    found = _positions(sessions(_roll_out(stream, "reservoir", 3)))
    for step, seen in found:
        kept = [p for p in seen[:3] if p >= 0]
        assert len(kept) == min(3, step - step % 4)
        assert all(p < step - step % 4 for p in kept)
    for (step, seen), (_, earlier) in zip(found[1:], found, strict=False):
        assert step % 4 == 0 or seen[:3] == earlier[:3]  # it stands still within a session


def test_refreshes_come_in_time_whatever_the_size() -> None:
    for size in range(1, 12):
        schedule = session_schedule(size, 40)
        times = [seen for seen, _ in schedule.refreshes(size, 40)]
        assert times == [start for start in range(4, 41, 4) if start > size]
        assert schedule.longest <= 4


def test_lots_are_drawn_anew_for_training_and_never_for_validation(
    world: World, stream_of: Callable[..., Stream]
) -> None:
    stream = stream_of([world([40, 33], items=20, explicit=False)])
    asked = []

    def roll(users: Stream, epoch: int) -> Trace:
        asked.append(epoch)
        return _roll_out(users, "reservoir", 3, epoch)

    nobody = (None, None)
    moving = Sessions(stream, stream, roll, is_random=True)
    first, valid = moving.traces(1, nobody, nobody)  # type: ignore[arg-type]
    second, again = moving.traces(2, nobody, nobody)  # type: ignore[arg-type]
    assert asked == [0, 1, 2]
    assert isinstance(first, StoredTrace)
    assert isinstance(second, StoredTrace)
    assert not torch.equal(first.kept, second.kept)
    assert valid is again
    still = Sessions(stream, stream, roll, is_random=False)
    assert still.traces(1, nobody, nobody)[0] is still.traces(2, nobody, nobody)[0]  # type: ignore[arg-type]


def test_a_schedule_out_of_time_would_lose_items(
    world: World, stream_of: Callable[..., Stream]
) -> None:
    """Why refreshes are in time: every 4 from size 2 on, items 6 and 7 are nowhere at step 8."""
    stream = stream_of([world([12], items=20, explicit=False)])
    out_of_time = rollout(
        stream, make_policy("last", size=2), size=2, schedule=Schedule((4,)), keys=stream.keys([0])
    )
    seen = dict(_positions(sessions(out_of_time)))
    assert seen[8][:2] == [4, 5]
    assert dict(_positions(sessions(_roll_out(stream, "last", 2))))[8][:2] == [6, 7]
