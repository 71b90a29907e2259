"""Sessions of four events: a prediction reads the sketch at the session start and the session."""

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
    """Return steps, and the positions of the events read there (-1 is padding)."""
    rows = torch.arange(len(trace.event))
    first = (trace.event - trace.step)[:, None]
    seen = trace.sketches(rows)
    own = torch.where(seen >= 0, seen - first, -1)
    return list(zip(trace.step.tolist(), own.tolist(), strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_last_reads_the_newest_before_the_session_and_the_session(
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


def test_without_a_sketch_only_the_session_is_read(
    world: World, stream_of: Callable[..., Stream]
) -> None:
    stream = stream_of([world(LENGTHS, items=20, explicit=False)])
    for step, seen in _positions(sessions(FullHistoryRollout(stream).trace)):
        so_far = list(range(step - step % 4, step))
        assert seen == so_far + [-1] * (3 - len(so_far))


def test_a_sampled_sketch_holds_no_event_of_the_session(
    world: World, stream_of: Callable[..., Stream]
) -> None:
    stream = stream_of([world([40, 33], items=20, explicit=False)])
    found = _positions(sessions(_roll_out(stream, "reservoir", 3)))
    for step, seen in found:
        kept = [p for p in seen[:3] if p >= 0]
        assert len(kept) == min(3, step - step % 4)
        assert all(p < step - step % 4 for p in kept)
    for (step, seen), (_, earlier) in zip(found[1:], found, strict=False):
        assert step % 4 == 0 or seen[:3] == earlier[:3]  # constant within a session


def test_refreshes_are_at_session_starts_for_every_size() -> None:
    for size in range(1, 12):
        schedule = session_schedule(size, 40)
        times = [seen for seen, _ in schedule.refreshes(size, 40)]
        assert times == [start for start in range(4, 41, 4) if start > size]
        assert schedule.longest <= 4


def test_random_sketches_change_each_epoch_in_training_but_not_in_validation(
    world: World, stream_of: Callable[..., Stream]
) -> None:
    stream = stream_of([world([40, 33], items=20, explicit=False)])
    epochs = []

    def roll(users: Stream, epoch: int) -> Trace:
        epochs.append(epoch)
        return _roll_out(users, "reservoir", 3, epoch)

    unused = (None, None)
    random = Sessions(stream, stream, roll, is_random=True)
    first, valid = random.traces(1, unused, unused)  # type: ignore[arg-type]
    second, again = random.traces(2, unused, unused)  # type: ignore[arg-type]
    assert epochs == [0, 1, 2]
    assert isinstance(first, StoredTrace)
    assert isinstance(second, StoredTrace)
    assert not torch.equal(first.kept, second.kept)
    assert valid is again
    fixed = Sessions(stream, stream, roll, is_random=False)
    assert fixed.traces(1, unused, unused)[0] is fixed.traces(2, unused, unused)[0]  # type: ignore[arg-type]


def test_a_schedule_that_ignores_sessions_loses_items(
    world: World, stream_of: Callable[..., Stream]
) -> None:
    """With size 2 and a refresh every 4 events, step 8 reads neither item 6 nor 7."""
    stream = stream_of([world([12], items=20, explicit=False)])
    unaligned = rollout(
        stream, make_policy("last", size=2), size=2, schedule=Schedule((4,)), keys=stream.keys([0])
    )
    seen = dict(_positions(sessions(unaligned)))
    assert seen[8][:2] == [4, 5]
    assert dict(_positions(sessions(_roll_out(stream, "last", 2))))[8][:2] == [6, 7]
