"""Rollouts equal a plain loop over one user at a time, and do not depend on the batch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from dips.data.interactions import Interactions, from_arrays
from dips.errors import ConfigError
from dips.kernels import dispatch
from dips.policy.registry import make_policy
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import FullHistoryTrace, StoredTrace, Trace, concatenate
from dips.sketch.selection import Sampled
from dips.stream.schedule import Schedule
from dips.stream.users import Stream, make_stream

World = Callable[..., Interactions]
StreamOf = Callable[[Sequence[Interactions]], Stream]
LENGTHS = [9, 3, 17, 1, 12, 2, 30, 4, 5, 8]
MASK = 2**64 - 1


PATHS = pytest.mark.parametrize("path", ["reference", "compiled"])


def _use_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use kernels where they exist, or none."""
    if path == "reference":
        monkeypatch.setattr(dispatch, "installed", lambda _: False)
    else:
        pytest.importorskip("numba")


# The oracle: no tensors, one user at a time.


def _hash(key: int, *parts: int) -> int:
    for part in parts:
        value = ((key ^ (part * 0xBF58476D1CE4E5B9)) + 0x9E3779B97F4A7C15) & MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
        key = value ^ (value >> 31)
    return key


def _key(user_id: str, seed: int) -> int:
    name = int.from_bytes(hashlib.blake2b(user_id.encode(), digest_size=8).digest(), "little")
    return _hash(name, seed, 0)


def _plain_score(policy: str, entries: list[tuple[int, int, int]], seen: int, key: int) -> list:
    """Scores of (position, item, repeats), as sortable tuples."""
    head, _, argument = policy.partition(":")
    priorities = [round((_hash(key, place) >> 11) * 2.0**-53 * 2**20) for place, _, _ in entries]
    newest = {item: place for place, item, _ in entries}
    stale = [newest[item] > place for place, item, _ in entries]
    if head == "last":
        return [place for place, _, _ in entries]
    if head == "reservoir":
        return priorities
    if head == "mix":
        return [
            (1, place) if place >= seen - int(argument) else (0, priority)
            for (place, _, _), priority in zip(entries, priorities, strict=True)
        ]
    if head == "last-distinct":
        return [(not old, entry[0]) for entry, old in zip(entries, stale, strict=True)]
    assert head == "frequent"
    return [(not old, entry[2], entry[0]) for entry, old in zip(entries, stale, strict=True)]


def _fold(items: list[int], policy: str, size: int, periods: Sequence[int], key: int) -> list:
    """[positions in the sketch that predicts t] for every t, and the final sketch at the end."""
    kept: list[tuple[int, int, int]] = []
    waiting: list[tuple[int, int, int]] = []
    due, turn, sketches = size + periods[0], 0, []
    for t, item in enumerate(items):
        sketches.append([place for place, _, _ in kept])  # predict
        known = [entry[2] for entry in kept + waiting if entry[1] == item]
        waiting.append((t, item, max(known, default=0) + 1))  # reveal
        if t < size:
            kept, waiting = kept + waiting, []
        elif t + 1 == due:  # refresh
            entries = kept + waiting
            scores = _plain_score(policy, entries, t + 1, key)
            order = sorted(range(len(entries)), key=lambda i: (scores[i], entries[i][0]))
            kept, waiting = sorted(entries[i] for i in order[-size:]), []
            turn += 1
            due += periods[turn % len(periods)]
    return [*sketches, [place for place, _, _ in kept]]


def _sketches(trace: Trace, run: int = 0) -> dict[tuple[int, int], list[int]]:
    """(user, t) -> positions in the sketch."""
    rows = torch.arange(trace.run_rows[run], trace.run_rows[run + 1])
    result = {}
    for row, events in zip(rows.tolist(), trace.sketches(rows).tolist(), strict=True):
        first = int(trace.event[row] - trace.step[row])
        there = [event - first for event in events if event >= 0]
        assert events == [first + place for place in there] + [-1] * (len(events) - len(there))
        result[int(trace.user[row]), int(trace.step[row])] = there
    return result


def _roll(stream: Stream, policy: str, size: int, periods: Sequence[int], **rest: object) -> Trace:
    seeds = rest.pop("seeds", [0] * stream.runs)
    return rollout(
        stream,
        make_policy(policy, size=size),
        size=size,
        schedule=Schedule(tuple(periods)),
        keys=stream.keys(seeds),  # type: ignore[arg-type]
        **rest,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("periods", [(1,), (4,), (3, 5, 2)], ids=["online", "batch", "varying"])
@pytest.mark.parametrize(
    ("policy", "size"),
    [
        *product(["last", "reservoir", "last-distinct", "frequent"], [1, 2, 4]),
        ("mix:1", 2),
        ("mix:2", 4),
    ],
)
@PATHS
def test_equals_the_loop_over_users(
    world: World, stream_of: StreamOf, policy: str, size: int, periods: tuple[int, ...], path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _use_path(path, monkeypatch)
    whole = world(LENGTHS, items=4, seed=3)
    warm = replace(whole, warmup=np.minimum(whole.lengths, [0, 2, 5, 1, 12, 0, 7, 4, 0, 3]))
    parts = [whole, warm.select([6, 1, 3, 9]), warm]
    seeds = [0, 1, 7]
    trace = _roll(stream_of(parts), policy, size, periods, seeds=seeds)
    assert trace.runs == 3
    for run, part in enumerate(parts):
        mine, expected = _sketches(trace, run), {}
        for user in range(part.users):
            items = part.item[part.events(user)].tolist()
            key = _key(part.user_id(user), seeds[run])
            kept = _fold(items, policy, size, periods, key)
            for t in range(int(part.warmup[user]), len(items)):
                expected[user, t] = kept[t]
        assert mine == expected


@pytest.mark.parametrize("periods", [(1,), (4,)])
def test_the_final_sketch_is_the_last_refresh(
    world: World, stream_of: StreamOf, periods: tuple[int, ...]
) -> None:
    data = world([*LENGTHS, 6, 7, 11, 10], items=4, seed=5)  # some end where a refresh is due
    stream = stream_of([data, data.select([1, 2, 5, 11])])  # a shorter run beside a longer one
    final = _roll(stream, "frequent", 3, periods).final
    starts = zip(stream.start.flatten().tolist(), stream.length.flatten().tolist(), strict=True)
    for row, (start, length) in enumerate(starts):
        items = data.item[start : start + length].tolist()
        kept = _fold(items, "frequent", 3, periods, 0)[-1]
        assert final.position[row].tolist() == kept + [-1] * (3 - len(kept))
        assert final.item[row].tolist() == [items[place] for place in kept] + [0] * (3 - len(kept))


def test_only_the_past_and_all_of_it(world: World, stream_of: StreamOf) -> None:
    """Off by one in either direction would show here."""
    stream = stream_of([world(LENGTHS)])
    for policy in ("last", "reservoir", "last-distinct", "frequent"):
        for (_, t), places in _sketches(_roll(stream, policy, 3, (1,))).items():
            assert all(place < t for place in places)
            assert len(places) == min(t, 3)
            if policy == "last":
                assert places == list(range(max(0, t - 3), t))


def test_everything_is_the_whole_prefix(world: World, stream_of: StreamOf) -> None:
    trace = _roll(stream_of([world(LENGTHS)]), "all", 3, (4,))
    assert isinstance(trace, FullHistoryTrace)
    assert trace.width == max(LENGTHS) - 1
    assert all(places == list(range(t)) for (_, t), places in _sketches(trace).items())
    assert sum(LENGTHS) == len(trace.event)


def test_scores_are_those_of_the_refresh(world: World, stream_of: StreamOf) -> None:
    trace = _roll(stream_of([world([9, 4])]), "last", 2, (3,), with_scores=True)
    assert isinstance(trace, StoredTrace)
    assert trace.scores is not None
    assert trace.final_scores is not None
    assert bool(trace.scores[:5].isnan().all())
    assert trace.scores[5:9].tolist() == [[-1.0, 0.0]] * 3 + [[-1.0, 0.0]]
    assert trace.final_scores[0].tolist() == [-1.0, 0.0]
    assert bool(trace.final_scores[1].isnan().all())


def test_a_policy_with_signals_needs_a_recommender(world: World, stream_of: StreamOf) -> None:
    with pytest.raises(ConfigError, match="with a recommender"):
        _roll(stream_of([world([9])]), "hardest", 2, (1,))


POLICIES = ["last", "reservoir", "mix:1", "last-distinct", "frequent", "hardest", "hardest:3",
            "influence", "influence:3", "last-top:1", "all"]  # fmt: skip


@pytest.mark.parametrize("name", ["mse", "softmax"])
@pytest.mark.parametrize("periods", [(1,), (3,)], ids=["online", "batch"])
@pytest.mark.parametrize("policy", POLICIES)
@PATHS
def test_decisions_do_not_depend_on_the_batch(
    world: World, stream_of: StreamOf, dot: Callable[..., DotProduct], losses: dict[str, Loss],
    policy: str, periods: tuple[int, ...], name: str, path: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One user, seven users, all users, stacked runs: the same bytes."""
    _use_path(path, monkeypatch)
    data = world(LENGTHS + [6] * 6, seed=2)
    users = list(range(data.users))
    models = [dot(losses[name], seed=seed) for seed in (0, 1)]

    def roll(parts: list[list[int]], runs: list[int]) -> list[dict[tuple[int, int], list[int]]]:
        trace = _roll(
            stream_of([data.select(part) for part in parts]),
            policy,
            2,
            periods,
            seeds=runs,
            recommenders=StackedRecommenders.of([models[run] for run in runs]),
        )
        found = [_sketches(trace, run) for run in range(len(runs))]
        return [
            {(part[user], t): places for (user, t), places in one.items()}
            for part, one in zip(parts, found, strict=True)
        ]

    together = [roll([users], [run])[0] for run in (0, 1)]
    if policy not in ("last", "last-distinct", "frequent", "all"):
        assert together[0] != together[1]  # the runs differ, or stacking them proves nothing
    assert roll([users, users[::-1]], [0, 1]) == together
    pieces = [users[low : low + 7] for low in range(0, len(users), 7)]
    for groups in (pieces, [[user] for user in users]):
        parts = [roll([group], [0])[0] for group in groups]
        assert {key: places for part in parts for key, places in part.items()} == together[0]


@pytest.mark.parametrize("periods", [(1,), (3,)])
def test_sampled_choices_do_not_depend_on_the_batch(
    world: World, stream_of: StreamOf, periods: tuple[int, ...]
) -> None:
    data = world(LENGTHS)
    together = _sketches(_roll(stream_of([data]), "last", 2, periods, selector=Sampled()))
    for user in range(data.users):
        single = _sketches(
            _roll(stream_of([data.select([user])]), "last", 2, periods, selector=Sampled())
        )
        assert single == {
            (0, t): places for (other, t), places in together.items() if other == user
        }


def _identical_users(users: int, length: int) -> Interactions:
    return from_arrays(np.repeat(np.arange(users), length), np.zeros(users * length, int))


@pytest.mark.parametrize("periods", [(1,), (4,)])
def test_reservoir_is_uniform(stream_of: StreamOf, periods: tuple[int, ...]) -> None:
    trace = _roll(stream_of([_identical_users(3000, 12)]), "reservoir", 3, periods)
    at = 11  # refreshed at 11 in both schedules
    counts = Counter(p for (_, t), places in _sketches(trace).items() if t == at for p in places)
    assert stats.chisquare([counts[place] for place in range(at)]).pvalue > 0.001


@pytest.mark.parametrize("periods", [(1,), (4,)])
def test_mix_keeps_the_newest_and_a_uniform_rest(
    stream_of: StreamOf, periods: tuple[int, ...]
) -> None:
    trace = _roll(stream_of([_identical_users(3000, 13)]), "mix:2", 4, periods)
    rest: Counter[int] = Counter()
    for (_, t), places in _sketches(trace).items():
        if t == 12:
            assert places[2:] == [10, 11]
            rest.update(places[:2])
    assert stats.chisquare([rest[place] for place in range(10)]).pvalue > 0.001


def test_parts_and_concatenation(world: World, stream_of: StreamOf) -> None:
    data = world(LENGTHS)
    parts = [data.select([0, 1, 2]), data.select([3, 4, 5, 6])]
    both = _roll(stream_of(parts), "last", 3, (1,))
    assert isinstance(both, StoredTrace)
    second = both.part(1, 2)
    assert _sketches(second) == _sketches(both, 1)
    assert second.final is not None
    assert both.final is not None
    assert torch.equal(second.final.position, both.final.position[4:])
    narrow = _roll(make_stream(parts[:1], both.columns), "last", 1, (1,))
    assert isinstance(narrow, StoredTrace)
    joined = concatenate([narrow, both])
    assert (joined.runs, joined.width) == (3, 3)
    assert _sketches(joined, 0) == _sketches(narrow)
    assert _sketches(joined, 2) == _sketches(both, 1)
    apart = _roll(stream_of(parts[:1]), "last", 1, (1,))
    assert isinstance(apart, StoredTrace)
    with pytest.raises(ValueError, match="traces over different columns cannot be joined"):
        concatenate([both, apart])
    whole = _roll(stream_of(parts), "all", 1, (1,))
    assert _sketches(whole.part(1, 2)) == _sketches(whole, 1)


def test_evidence_is_the_sketch(world: World, stream_of: StreamOf) -> None:
    data = world([6, 3])
    trace = _roll(stream_of([data]), "last", 2, (1,))
    evidence = trace.evidence(torch.tensor([0, 1, 4]))
    assert evidence.weight.tolist() == [[0, 0], [1, 0], [1, 1]]
    assert evidence.slots.tolist() == [0, 1, 2]
    assert evidence.item[2].tolist() == data.item[2:4].tolist()
    assert evidence.rating[1].tolist() == [float(data.rating[0]), 0.0]  # type: ignore[index]
