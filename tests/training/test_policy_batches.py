"""Policy batches hold every prediction once and in order; decision inputs are rebuilt exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.credit.decisions import with_dropped_candidates
from dips.data.interactions import Interactions
from dips.numerics.hashing import combine
from dips.policy.base import Policy
from dips.policy.registry import make_policy
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import Rollout
from dips.sketch.records import Candidates
from dips.sketch.selection import Greedy
from dips.sketch.signals import Signals
from dips.stream.schedule import Schedule
from dips.stream.users import Stream
from dips.training.policy_batches import (
    ORDER,
    RefreshTable,
    interval_policy_batch,
    pack_policy_batches,
    rebuild_inputs,
)

World = Callable[..., Interactions]
StreamOf = Callable[[Sequence[Interactions]], Stream]
LENGTHS, SIZE, SEEDS = [9, 3, 17, 1, 12, 2, 14, 4, 5, 8], 2, [0, 5]
SCHEDULES = [Schedule((1,)), Schedule((4,)), Schedule((3, 5, 2))]
BY_SCHEDULE = pytest.mark.parametrize("schedule", SCHEDULES, ids=["online", "batch", "varying"])
CPU = torch.device("cpu")


class RecordingPolicy(Policy):
    """Scores by another policy and records the inputs of every decision by (key, seen)."""

    required_signals = ("loss", "residual")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.recorded: dict[tuple[int, int], dict[str, Any]] = {}

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        values = {"loss": signals.loss, "residual": signals.residual}
        scores = self.policy.score(candidates, signals)
        slots = Greedy().choose(scores, candidates, SIZE)
        chosen = candidates.position.gather(1, slots)
        for row, (key, seen) in enumerate(zip(candidates.key, candidates.seen, strict=True)):
            entries = {name: value[row] for name, value in candidates.entries._asdict().items()}
            known = {name: value[row] for name, value in values.items()}
            self.recorded[int(key), int(seen)] = {**entries, **known, "chosen": chosen[row]}
        return scores


class Scene:
    """Rollouts of two runs, one with fewer users."""

    def __init__(
        self,
        world: World,
        stream_of: StreamOf,
        schedule: Schedule,
        policy_inputs: RecordingPolicy,
        stack: StackedRecommenders | None,
    ) -> None:
        data = world(LENGTHS, items=5, seed=3)
        self.stream = stream_of([data, data.select([2, 0, 6, 7, 1])])
        self.schedule, keys = schedule, self.stream.keys(SEEDS)
        recorded_signals = ["loss", "residual"] if stack else []
        rollout = Rollout(
            self.stream, size=SIZE, schedule=schedule, keys=keys, recorded_signals=recorded_signals
        )
        rollout.advance(policy_inputs if stack else policy_inputs.policy, stack)
        self.trace, self.base = rollout.trace, rollout.base
        self.refresh_table = RefreshTable.of(schedule, SIZE, self.stream.longest, CPU)
        self.refreshes = dict(schedule.refreshes(SIZE, self.stream.longest))

    def rows(self, run: int) -> range:
        return range(self.trace.run_rows[run], self.trace.run_rows[run + 1])


@pytest.fixture
def scene(
    world: World, stream_of: StreamOf, dot: Callable[..., DotProduct], losses: dict[str, Loss]
) -> Callable[..., tuple[Scene, RecordingPolicy]]:
    """Return `scene(schedule, policy, required_signals)`: rollouts, and recorded inputs."""

    def make(schedule: Schedule, policy: str = "frequent", required_signals: bool = True) -> Any:
        policy_inputs = RecordingPolicy(make_policy(policy, size=SIZE))
        stack = (
            StackedRecommenders.of([dot(losses["mse"], seed=seed) for seed in SEEDS])
            if required_signals
            else None
        )
        return Scene(world, stream_of, schedule, policy_inputs, stack), policy_inputs

    return make


@BY_SCHEDULE
@pytest.mark.parametrize("policy", ["frequent", "reservoir", "hardest"])
def test_rebuilt_inputs_are_those_of_the_rollout(
    scene: Any, schedule: Schedule, policy: str
) -> None:
    """For every decision of every user, with padding among them."""
    at, policy_inputs = scene(schedule, policy)
    rows = [
        [row for row in at.rows(run) if int(at.trace.step[row]) in at.refreshes] for run in (0, 1)
    ]
    most = max(map(len, rows)) + 1
    decided = torch.tensor([[*found, *[-1] * (most - len(found))] for found in rows])
    inputs = rebuild_inputs(at.trace, at.refresh_table, decided)
    width = SIZE + schedule.longest
    assert inputs.kept.shape == (2 * most, width)
    for place, row in enumerate(decided.flatten().tolist()):
        if row < 0:
            assert int(inputs.owner[place]) == -1
            assert not bool(inputs.candidates.present[place].any())
            assert not bool(inputs.kept[place].any())
            continue
        assert int(inputs.owner[place]) == int(at.trace.inputs.owner[row])
        seen, key = int(inputs.candidates.seen[place]), int(inputs.candidates.key[place])
        assert seen == int(at.trace.step[row])
        expected = policy_inputs.recorded[key, seen]
        count = SIZE + at.refreshes[seen]
        assert inputs.candidates.present[place].tolist() == [True] * count + [False] * (
            width - count
        )
        for name, value in inputs.candidates.entries._asdict().items():
            assert torch.equal(value[place, :count], expected[name]), name
        for name, value in inputs.signals.items():
            assert value.dtype == expected[name].dtype
            torch.testing.assert_close(value[place, :count], expected[name], atol=1e-6, rtol=1e-6)
        kept = inputs.candidates.position[place][inputs.kept[place]]
        assert torch.equal(kept, expected["chosen"])


@BY_SCHEDULE
@pytest.mark.parametrize("width", [1, 20, 1000])
def test_whole_history_batches_hold_every_prediction_once(
    scene: Any, schedule: Schedule, width: int
) -> None:
    """In order of time, with the predictions of each decision: against a plain loop."""
    at, _ = scene(schedule, required_signals=False)
    policy_batches = pack_policy_batches(at.trace, at.refresh_table, SEEDS, 3, width)
    owner, step = at.trace.inputs.owner.tolist(), at.trace.step.tolist()
    ends = [*at.refreshes, 10**6]
    orders: list[list[int]] = []
    for run in (0, 1):
        seen, order = [], []
        for policy_batch in policy_batches:
            predicted = [row for row in policy_batch.predicted[run].tolist() if row >= 0]
            decided = [row for row in policy_batch.decided[run].tolist() if row >= 0]
            assert decided == [row for row in predicted if step[row] in at.refreshes]
            assert len(predicted) <= max(width, max(LENGTHS))
            for decision, places in zip(
                policy_batch.decided[run].tolist(),
                policy_batch.prediction_places[run].tolist(),
                strict=True,
            ):
                found = [int(policy_batch.predicted[run, place]) for place in places if place >= 0]
                if decision < 0:
                    assert found == []
                    continue
                end = next(end for end in ends if end > step[decision])
                assert found == [
                    row for row in predicted
                    if owner[row] == owner[decision] and step[decision] <= step[row] < end
                ]  # fmt: skip
            seen += predicted
            for row in predicted:
                order += [owner[row]] if owner[row] not in order else []
        assert sorted(seen) == list(at.rows(run))
        starts = {user: seen.index(next(r for r in seen if owner[r] == user)) for user in order}
        for user, start in starts.items():  # whole histories, consecutive
            own = [row for row in at.rows(run) if owner[row] == user]
            assert seen[start : start + len(own)] == own
        users = at.trace.user
        hashes = {
            user: int(combine(users[seen[s]], SEEDS[run], 3, ORDER)) for user, s in starts.items()
        }
        assert order == sorted(order, key=hashes.__getitem__)
        orders.append(order)


@BY_SCHEDULE
@pytest.mark.parametrize("width", [1, 20])
def test_a_run_is_packed_as_in_a_stack_of_one(scene: Any, schedule: Schedule, width: int) -> None:
    at, _ = scene(schedule, required_signals=False)
    together = pack_policy_batches(at.trace, at.refresh_table, SEEDS, 3, width)
    for run, seed in enumerate(SEEDS):
        first = at.trace.run_rows[run]
        single = pack_policy_batches(
            at.trace.part(run, run + 1), at.refresh_table, [seed], 3, width
        )
        for index, policy_batch in enumerate(together):
            if index >= len(single):
                assert all(bool((field[run] == -1).all()) for field in policy_batch)
                continue
            for field, own, shift in zip(
                policy_batch, single[index], (first, first, 0), strict=True
            ):
                mine, other = field[run], own[0]
                mine = torch.where(mine >= 0, mine - shift, -1)
                size = len(other)
                assert torch.equal(mine[:size], other)
                assert bool((mine[size:] == -1).all())


def test_a_run_without_users_has_empty_batches(world: World, stream_of: StreamOf) -> None:
    """A user batch may have no user of one of the runs."""
    data = world([5, 4, 6])
    stream = stream_of([data.select([0, 2]), data.select([1])])
    stream = stream.take(torch.tensor([[0, 1], [-1, -1]]))
    rollout = Rollout(
        stream, size=2, schedule=Schedule(), keys=stream.keys(SEEDS), recorded_signals=[]
    )
    rollout.advance(make_policy("last", size=2))
    refresh_table = RefreshTable.of(Schedule(), 2, 6, CPU)
    (policy_batch,) = pack_policy_batches(rollout.trace, refresh_table, SEEDS, 1, 100)
    assert policy_batch.predicted[0].sort().values.tolist() == list(range(11))
    assert bool((policy_batch.predicted[1] == -1).all())
    assert bool((policy_batch.prediction_places[1] == -1).all())


@BY_SCHEDULE
@pytest.mark.parametrize("queue", [1, 3, 100])
@pytest.mark.parametrize("interval", [1, 2, 5, 1000])
def test_interval_batches_hold_every_prediction_once(
    scene: Any, schedule: Schedule, queue: int, interval: int
) -> None:
    """And the decisions of the queue: the current one, and the `queue` - 1 before."""
    at, _ = scene(schedule, required_signals=False)
    refreshes, step, owner = list(at.refreshes), at.trace.step, at.trace.inputs.owner
    seen: list[list[int]] = [[], []]
    for first in range(0, at.stream.longest, interval):
        span = range(first, min(first + interval, at.stream.longest))
        policy_batch = interval_policy_batch(
            at.refresh_table, queue, at.base, at.stream.length, span
        )
        if policy_batch is None:
            assert span.stop <= refreshes[0]
            for run in (0, 1):
                seen[run] += [row for row in at.rows(run) if int(step[row]) in span]
            continue
        for run in (0, 1):
            predicted = policy_batch.predicted[run]
            rows = predicted[predicted >= 0].tolist()
            assert rows == [row for row in at.rows(run) if int(step[row]) in span]
            seen[run] += rows
            decided = policy_batch.decided[run][policy_batch.decided[run] >= 0].tolist()
            due = [t for t in refreshes if t < span.stop]
            force = sum(t <= span.start for t in due) - 1
            due = due[max(0, force - queue + 1) :]
            assert decided == [row for row in at.rows(run) if int(step[row]) in due]
            for decision, places in zip(
                policy_batch.decided[run].tolist(), policy_batch.prediction_places[run], strict=True
            ):
                found = predicted[places[places >= 0]].tolist()
                if decision < 0:
                    assert found == []
                    continue
                end = min([t for t in refreshes if t > step[decision]], default=10**6)
                assert found == [
                    row for row in rows
                    if owner[row] == owner[decision] and step[decision] <= step[row] < end
                ]  # fmt: skip
    assert sorted(seen[0]) == list(at.rows(0))
    assert sorted(seen[1]) == list(at.rows(1))


@BY_SCHEDULE
@pytest.mark.parametrize("count", [0, 1, 3])
def test_dropped_candidates_are_those_of_earlier_decisions(
    scene: Any, schedule: Schedule, count: int
) -> None:
    at, _ = scene(schedule, "reservoir")
    (policy_batch,) = pack_policy_batches(at.trace, at.refresh_table, SEEDS, 1, 1000)
    inputs = rebuild_inputs(at.trace, at.refresh_table, policy_batch.decided)
    width = inputs.kept.shape[1]
    tracked, weight = with_dropped_candidates(inputs, count, width - SIZE)
    assert tracked.kept.shape[1] == width + count * (width - SIZE)
    position, present = inputs.candidates.position, inputs.candidates.present
    for place, owner in enumerate(inputs.owner.tolist()):
        assert torch.equal(tracked.candidates.position[place, :width], position[place])
        assert torch.equal(weight[place, :width] > 0, present[place])
        assert not bool(weight[place, width:].any())
        assert not bool(tracked.kept[place, width:].any())
        expected: list[int] = []
        for back in range(1, count + 1):
            if owner >= 0 and place - back >= 0 and int(inputs.owner[place - back]) == owner:
                gone = present[place - back] & ~inputs.kept[place - back]
                expected += position[place - back][gone].tolist()
        dropped_candidates = tracked.candidates.position[place, width:]
        assert dropped_candidates[dropped_candidates >= 0].tolist() == expected
        first = int(at.trace.event[policy_batch.decided.flatten()[place]]) - int(
            inputs.candidates.seen[place]
        )
        for slot in (dropped_candidates >= 0).nonzero()[:, 0].tolist():
            event = first + int(dropped_candidates[slot])
            assert int(tracked.candidates.item[place, width + slot]) == int(
                at.trace.columns.item[event]
            )
