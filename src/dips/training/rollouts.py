"""The sketches that training reads: walks of all runs, grouped so that equal ones go together.

Walked once for policies that never change their mind, every epoch for those that draw lots or
learn, and every `resketch_epochs` epochs for those that ask the recommender (their validation users every
epoch). With `users` or `stretch` set, training walks live: some users, some steps, then the
parameters move, and the walk goes on with the new ones (Algorithm 1 of the paper is stretch 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from dips.data.interactions import Interactions
from dips.numerics.hashing import combine
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.policy.base import Policy, signals_of
from dips.policy.registry import learns, make_policy
from dips.policy.stacked import StackedPolicies
from dips.recommender.base import Recommender
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import FullHistoryRollout, Rollout, rollout
from dips.rollout.trace import FullHistoryTrace, StoredTrace, Trace, concatenate
from dips.sketch.selection import selector_named
from dips.stream.prefetch import prefetched
from dips.stream.users import EventColumns, Stream, enlist, make_stream
from dips.training.batches import Block, Prefixes, Stretch
from dips.training.config import TrainConfig
from dips.training.distributed import Shard, shard_of
from dips.training.policy_batches import Clock
from dips.training.sequences import whole

USER_BATCH = 0xC0417A
"""Keeps the draw of who walks together apart from other draws."""
Players = tuple[StackedRecommenders, StackedPolicies | None]
"""Recommenders, and the policies where they learn."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run: who trains, who validates, and the settings."""

    train: Interactions
    valid: Interactions
    config: TrainConfig


def policy_of(config: TrainConfig) -> Policy:
    """Return the policy that the settings name; a learned one serves to read its attributes."""
    return make_policy(
        config.sketch.policy,
        size=config.sketch.size,
        damping=config.sketch.damping,
        dim=config.model.dim or 1,
        residual=config.policy_training.residual is not False,
        predicted_score=bool(config.policy_training.predicted_score),
    )


def group_key(config: TrainConfig) -> tuple[object, ...]:
    """Runs with the same key share one walk."""
    damping = config.sketch.damping if config.sketch.policy.startswith("influence") else None
    return (config.sketch.policy, config.sketch.size, config.sketch.schedule, config.sketch.selection, damping)


def noted(policy: Policy) -> list[str] | None:
    """The signals that a walk has to note, so that a policy that learns can be asked again."""
    if not learns(policy):
        return None
    return [name for name in signals_of(policy) if name in ("loss", "residual", "predicted_score")]


class _Group:
    """Runs of one policy, size and schedule."""

    def __init__(
        self, jobs: Sequence[Job], runs: Sequence[int], columns: EventColumns, shard: Shard
    ) -> None:
        self.jobs, self.runs, self.shard = jobs, list(runs), shard
        self.config = jobs[0].config
        self.policy = policy_of(self.config)
        self.noted = noted(self.policy)
        self.moving = (
            self.policy.is_random or self.config.sketch.selection == "sampled" or learns(self.policy)
        )
        train, valid = [job.train for job in jobs], [job.valid for job in jobs]
        self.live = bool(self.config.training.user_batch or self.config.training.update_interval)
        self.apart = self.live or (
            bool(self.policy.required_signals) and self.config.training.resketch_epochs > 1
        )
        if self.live:  # who trains comes company by company
            self.streams = [enlist(train, columns), make_stream(valid, columns)]
        else:
            streams = [train, valid] if self.apart else [train + valid]
            self.streams = [make_stream(parts, columns) for parts in streams]
        self.training: Trace | None = None
        self.validation: Trace | None = None

    def walk(self, epoch: int, now: Players, walked: Players) -> tuple[Trace | None, Trace]:
        """Sketches for training in `epoch`, and for validating what was trained before it.

        Validation always sees recommender and policy as they are `now`. Training sees them as last
        `walked`; where that is the same, one walk serves both.
        """
        if self.apart:
            age = (
                epoch - 1
            ) % self.config.training.resketch_epochs  # a run that is resumed may have to look back
            if not self.live and (self.training is None or age == 0):
                self.training = self._roll(self.streams[0], walked, epoch - age, self.noted)
            self.validation = self._roll(self.streams[1], now, 0)
        elif self.training is None or self.moving or self.policy.required_signals:
            both = self._roll(self.streams[0], now, epoch, self.noted)
            self.training, self.validation = _halves(both)
        assert self.validation is not None
        return self.training, self.validation

    def _roll(
        self, stream: Stream, players: Players, epoch: int, notes: Sequence[str] | None = None
    ) -> Trace:
        stack, policies = players
        stream, times = self.shard.own(stream), stream.runs // len(self.jobs)
        keys = stream.keys(self._seeds(times), epoch)
        if times == 2:  # the second half validates, with the lots of epoch 0
            half = len(self.jobs)
            keys = torch.cat([keys[:half], stream.keys(self._seeds(times))[half:]])
        return rollout(
            stream,
            self.policy if policies is None else policies.select(self.runs * times),
            size=self.config.sketch.size,
            schedule=self.config.sketch.schedule,
            keys=keys,
            recommenders=stack.select(self.runs * times) if self.policy.required_signals else None,
            selector=selector_named(self.config.sketch.selection),
            noted=notes,
        )

    def blocks(
        self, epoch: int, stack: StackedRecommenders, policies: StackedPolicies | None, skip: int
    ) -> Iterator[Block]:
        """Walk live: a company of users, a stretch of steps, and again with what was learned."""
        stream = self.streams[0]
        user_batches = _companies(stream, self._seeds(1), epoch, self.config.training.user_batch or 0)
        for some in prefetched(stream.take(places) for places in islice(user_batches, skip, None)):
            if not (end := some.longest):
                return
            stretch = self.config.training.update_interval or end
            walk, base = self._walk(self.shard.own(some), epoch), _first_rows(some)
            for first in range(0, end, stretch):
                span = range(first, min(first + stretch, end))
                walk.advance(policies or self.policy, stack, span.stop)
                way = (base, some.length, span, span.stop == end)
                make = partial(self._block, way, stack)
                yield self.shard.block(partial(_same, some), walk.trace, make)
            del walk, make  # before the next company's trace is made

    def _block(
        self, way: tuple[Tensor, Tensor, range, bool], stack: StackedRecommenders, trace: Trace
    ) -> Block:
        """What is learned from some users at some steps of their `way`."""
        if not self.config.training.update_interval:
            return whole(trace, stack.template)
        if isinstance(trace, StoredTrace):
            return Stretch(trace, *way)
        assert isinstance(trace, FullHistoryTrace)
        return Prefixes(trace, *way)

    def _walk(self, some: Stream, epoch: int) -> Rollout | FullHistoryRollout:
        """These users at the start of their way."""
        if self.policy.keeps_all:
            return FullHistoryRollout(some)
        return Rollout(
            some,
            size=self.config.sketch.size,
            schedule=self.config.sketch.schedule,
            keys=some.keys(self._seeds(1), epoch),
            selector=selector_named(self.config.sketch.selection),
            noted=self.noted,
        )

    def _seeds(self, times: int) -> list[int]:
        return [job.config.training.seed for job in self.jobs] * times


def _same(stream: Stream) -> Stream:
    return stream


def _first_rows(stream: Stream) -> Tensor:
    """[runs, users] the row of a user's prediction t in a walk is this + t."""
    counted = (stream.length - stream.warmup).flatten()
    return (counted.cumsum(0) - counted).view_as(stream.warmup) - stream.warmup


def _companies(stream: Stream, seeds: Sequence[int], epoch: int, count: int) -> Iterator[Tensor]:
    """[runs, count] places of the users that walk together, drawn anew each epoch; -1 pads."""
    there = stream.length > 0
    seed = torch.tensor(list(seeds), device=there.device)[:, None]
    lots = combine(stream.identity, seed, epoch, USER_BATCH)
    last = torch.iinfo(torch.int64).max
    order = torch.where(there, lots, last).argsort(stable=True, dim=1)
    order = torch.where(there.gather(1, order), order, -1)
    width = stream.start.shape[1]
    for low in range(0, width, count or width):
        some = order[:, low : low + (count or width)]
        far = torch.where(some >= 0, some, width)
        sorted_places = far.sort(1).values  # as in the stream: the longest first
        yield torch.where(sorted_places < width, sorted_places, -1)


class Sketching(Protocol):
    """Where training gets the sketches from that it reads."""

    clock: Clock
    live: bool

    def sketches(self, epoch: int, now: Players, walked: Players) -> tuple[Trace | None, Trace]:
        """(training trace, validation trace); no training trace where training walks live."""

    def block(self, training: Trace, model: Recommender) -> Block:
        """What is learned from walks that are over."""

    def blocks(
        self,
        epoch: int,
        stack: StackedRecommenders,
        policies: StackedPolicies | None,
        skip: int = 0,
    ) -> Iterator[Block]:
        """What is learned on the way, where training walks live."""


class TrainingRollouts:
    """All groups of a stack of jobs; jobs of a group stand next to each other."""

    def __init__(
        self, jobs: Sequence[Job], columns: EventColumns, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        keys = [group_key(job.config) for job in jobs]
        if len(set(keys)) > 1:  # their traces are read as one: all events come once, for everyone
            columns = columns.on_device()
        self.jobs, self.columns, self.shard = jobs, columns, shard_of(process_group)
        self.groups = []
        for key in dict.fromkeys(keys):
            runs = [run for run, other in enumerate(keys) if other == key]
            self.groups.append(_Group([jobs[run] for run in runs], runs, columns, self.shard))
        first = self.groups[0]
        self.clock = Clock.of(
            first.config.sketch.schedule,
            first.config.sketch.size,
            max(stream.longest for stream in first.streams),
            columns.device,
        )
        """The schedule as policies that learn need it."""
        self.live = any(group.live for group in self.groups)
        """Whether training walks live."""
        alone = self.live or any(learns(group.policy) for group in self.groups)
        if alone and len(self.groups) > 1:
            raise TypeError("runs that learn a policy or walk live share a stack with their like")

    def sketches(self, epoch: int, now: Players, walked: Players) -> tuple[Trace | None, Trace]:
        """(training trace, validation trace), each with the runs in the order of the jobs.

        There is no training trace where training walks live.
        """
        pairs = [group.walk(epoch, now, walked) for group in self.groups]
        training = [pair[0] for pair in pairs if pair[0] is not None]
        return _joined(training) if training else None, _joined([pair[1] for pair in pairs])

    @cached_property
    def everyone(self) -> Stream:
        """The training users of all runs, of all processes."""
        return make_stream([job.train for job in self.jobs], self.columns)

    def block(self, training: Trace, model: Recommender) -> Block:
        """What is learned from walks that are over."""
        return self.shard.block(lambda: self.everyone, training, lambda trace: whole(trace, model))

    def blocks(
        self,
        epoch: int,
        stack: StackedRecommenders,
        policies: StackedPolicies | None,
        skip: int = 0,
    ) -> Iterator[Block]:
        """Walk the training users live, without the first user_batches of the epoch."""
        return self.groups[0].blocks(epoch, stack, policies, skip)


def _halves(trace: Trace) -> tuple[Trace, Trace]:
    count = (len(trace.run_rows) - 1) // 2
    return trace.part(0, count), trace.part(count, 2 * count)


def _joined(traces: Sequence[Trace]) -> Trace:
    if len(traces) == 1:
        return traces[0]
    stored = [trace for trace in traces if isinstance(trace, StoredTrace)]
    if len(stored) < len(traces):
        raise TypeError("a run that keeps everything cannot share a stack with one that does not")
    return concatenate(stored)
