"""The sketches that training reads: rollouts of all runs; runs that share one are grouped.

A rollout is repeated only where its sketches change. Static rules are rolled out once. Random and
learned policies are rolled out every epoch. Policies that use the recommender are rolled out every
`resketch_epochs` epochs, their validation users every epoch. With `user_batch` or `update_interval`
rollout and updates are interleaved: some users, some steps, an update, and on with the new
parameters. An interval of 1 is the paper's Algorithm 1.
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
from dips.sketch.selection import make_selector
from dips.stream.prefetch import prefetch_batches
from dips.stream.users import EventColumns, Stream, make_host_stream, make_stream
from dips.training.batches import FullHistoryIntervalBlock, IntervalBlock, TrainingBlock
from dips.training.config import TrainConfig
from dips.training.distributed import UserPartition, partition_users
from dips.training.policy_batches import RefreshTable
from dips.training.sequences import full_history_block

USER_BATCH = 0xC0417A
"""Separates the draw of user batches from other draws."""
StackedModels = tuple[StackedRecommenders, StackedPolicies | None]
"""Recommenders, and policies if they are trained."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run: training users, validation users and resolved settings."""

    train: Interactions
    valid: Interactions
    config: TrainConfig


def policy_of(config: TrainConfig) -> Policy:
    """Return the policy that the settings name; a learned one serves to read its attributes."""
    return make_policy(
        config.sketch.policy,
        size=config.sketch.size,
        damping=config.sketch.damping,
        residual=config.policy_training.residual is not False,
        predicted_score=bool(config.policy_training.predicted_score),
    )


def group_key(config: TrainConfig) -> tuple[object, ...]:
    """Return a key; runs with the same key share one rollout."""
    damping = config.sketch.damping if config.sketch.policy.startswith("influence") else None
    return (
        config.sketch.policy,
        config.sketch.size,
        config.sketch.schedule,
        config.sketch.selection,
        damping,
    )


def recorded_signals(policy: Policy) -> list[str] | None:
    """Return the signals that a rollout records; None for a policy without parameters.

    With them, decisions of a learned policy can be computed again.
    """
    if not learns(policy):
        return None
    return [name for name in signals_of(policy) if name in ("loss", "residual", "predicted_score")]


class _RolloutGroup:
    """Runs of one policy, size and schedule, which are rolled out together."""

    def __init__(
        self,
        jobs: Sequence[Job],
        runs: Sequence[int],
        columns: EventColumns,
        partition: UserPartition,
    ) -> None:
        self.jobs, self.runs, self.partition = jobs, list(runs), partition
        self.config = config = jobs[0].config
        self.policy = policy_of(config)
        self.recorded_signals = recorded_signals(self.policy)
        sampled = self.policy.is_random or config.sketch.selection == "sampled"
        self.changing = sampled or learns(self.policy)
        self.interleaved = bool(config.training.user_batch or config.training.update_interval)
        stale = bool(self.policy.required_signals) and config.training.resketch_epochs > 1
        self.separate = self.interleaved or stale
        train, valid = [job.train for job in jobs], [job.valid for job in jobs]
        if self.interleaved:  # training users come in batches
            self.streams = [make_host_stream(train, columns), make_stream(valid, columns)]
        else:
            streams = [train, valid] if self.separate else [train + valid]
            self.streams = [make_stream(parts, columns) for parts in streams]
        self.training: Trace | None = None
        self.validation: Trace | None = None

    def traces(
        self, epoch: int, current: StackedModels, at_rollout: StackedModels
    ) -> tuple[Trace | None, Trace]:
        """Return the training trace of `epoch`, and the validation trace of the epoch before.

        Validation users are rolled out with the current models, training users with the models of
        the last resketch. Where these are equal, one rollout serves both.
        """
        if self.separate:
            # A resumed run may have to repeat the rollout of an earlier epoch.
            age = (epoch - 1) % self.config.training.resketch_epochs
            if not self.interleaved and (self.training is None or age == 0):
                self.training = self._roll_out(
                    self.streams[0], at_rollout, epoch - age, self.recorded_signals
                )
            self.validation = self._roll_out(self.streams[1], current, 0)
        elif self.training is None or self.changing or self.policy.required_signals:
            both = self._roll_out(self.streams[0], current, epoch, self.recorded_signals)
            self.training, self.validation = _split_halves(both)
        assert self.validation is not None
        return self.training, self.validation

    def _roll_out(
        self,
        stream: Stream,
        models: StackedModels,
        epoch: int,
        recorded: Sequence[str] | None = None,
    ) -> Trace:
        """Return the trace of a stream: the runs once, or twice for training and validation."""
        stack, policies = models
        stream, copies = self.partition.local_users(stream), stream.runs // len(self.jobs)
        keys = stream.keys(self._seeds(copies), epoch)
        if copies == 2:  # validation users have the random priorities of epoch 0
            half = len(self.jobs)
            keys = torch.cat([keys[:half], stream.keys(self._seeds(copies))[half:]])
        return rollout(
            stream,
            self.policy if policies is None else policies.select(self.runs * copies),
            size=self.config.sketch.size,
            schedule=self.config.sketch.schedule,
            keys=keys,
            recommenders=stack.select(self.runs * copies) if self.policy.required_signals else None,
            selector=make_selector(self.config.sketch.selection),
            recorded_signals=recorded,
        )

    def blocks(
        self, epoch: int, stack: StackedRecommenders, policies: StackedPolicies | None, skip: int
    ) -> Iterator[TrainingBlock]:
        """Yield blocks while the rollout goes on: a batch of users, an interval of steps.

        The parameters may change after each block; the next one is rolled out with the new ones.
        """
        stream = self.streams[0]
        batches = _user_batches(stream, self._seeds(1), epoch, self.config.training.user_batch or 0)
        rest = (stream.take(places) for places in islice(batches, skip, None))
        for users in prefetch_batches(rest):
            if not (end := users.longest):
                return
            interval = self.config.training.update_interval or end
            started = self._start(self.partition.local_users(users), epoch)
            base = _first_rows(users)
            for first in range(0, end, interval):
                span = range(first, min(first + interval, end))
                started.advance(policies or self.policy, stack, span.stop)
                steps = (base, users.length, span, span.stop == end)
                make = partial(self._block, steps, stack)
                yield self.partition.block(partial(_identity, users), started.trace, make)
            del started, make  # frees the trace before the next one is made

    def _block(
        self, steps: tuple[Tensor, Tensor, range, bool], stack: StackedRecommenders, trace: Trace
    ) -> TrainingBlock:
        """Return the block of some users over some steps: (base, length, span, is_last)."""
        if not self.config.training.update_interval:
            return full_history_block(trace, stack.template)
        if isinstance(trace, StoredTrace):
            return IntervalBlock(trace, *steps)
        assert isinstance(trace, FullHistoryTrace)
        return FullHistoryIntervalBlock(trace, *steps)

    def _start(self, users: Stream, epoch: int) -> Rollout | FullHistoryRollout:
        """Return the rollout of these users before their first step."""
        if self.policy.keeps_all:
            return FullHistoryRollout(users)
        return Rollout(
            users,
            size=self.config.sketch.size,
            schedule=self.config.sketch.schedule,
            keys=users.keys(self._seeds(1), epoch),
            selector=make_selector(self.config.sketch.selection),
            recorded_signals=self.recorded_signals,
        )

    def _seeds(self, copies: int) -> list[int]:
        return [job.config.training.training_seed for job in self.jobs] * copies


def _identity(stream: Stream) -> Stream:
    return stream


def _first_rows(stream: Stream) -> Tensor:
    """Return base [runs, users]: the row of a user's prediction t in a trace is base + t."""
    counted = (stream.length - stream.warmup).flatten()
    return (counted.cumsum(0) - counted).view_as(stream.warmup) - stream.warmup


def _user_batches(stream: Stream, seeds: Sequence[int], epoch: int, count: int) -> Iterator[Tensor]:
    """Yield the users of each batch, [runs, count], drawn anew each epoch; -1 pads. 0: all."""
    present = stream.length > 0
    seed = torch.tensor(list(seeds), device=present.device)[:, None]
    priority = combine(stream.identity, seed, epoch, USER_BATCH)
    last = torch.iinfo(torch.int64).max
    order = torch.where(present, priority, last).argsort(stable=True, dim=1)
    order = torch.where(present.gather(1, order), order, -1)
    width = stream.start.shape[1]
    for low in range(0, width, count or width):
        some = order[:, low : low + (count or width)]
        far = torch.where(some >= 0, some, width)
        in_order = far.sort(1).values  # as in the stream: the longest histories first
        yield torch.where(in_order < width, in_order, -1)


class TraceSource(Protocol):
    """Where training gets its sketches from."""

    refresh_table: RefreshTable
    interleaved: bool
    """Whether rollout and updates are interleaved: then `blocks` is used, else `traces`."""

    def traces(
        self, epoch: int, current: StackedModels, at_rollout: StackedModels
    ) -> tuple[Trace | None, Trace]:
        """Return the training trace, None if interleaved, and the validation trace."""

    def block(self, training: Trace, model: Recommender) -> TrainingBlock:
        """Return the block of a finished rollout."""

    def blocks(
        self,
        epoch: int,
        stack: StackedRecommenders,
        policies: StackedPolicies | None,
        skip: int = 0,
    ) -> Iterator[TrainingBlock]:
        """Yield the blocks of an interleaved rollout, without the first `skip` user batches."""


class TrainingRollouts:
    """Rollouts of stacked runs; runs that share a rollout stand next to each other."""

    def __init__(
        self,
        jobs: Sequence[Job],
        columns: EventColumns,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        keys = [group_key(job.config) for job in jobs]
        if len(set(keys)) > 1:  # traces of several groups are joined, so they share the events
            columns = columns.to_device()
        self.jobs, self.columns = jobs, columns
        self.partition = partition_users(process_group)
        self.groups = []
        for key in dict.fromkeys(keys):
            runs = [run for run, other in enumerate(keys) if other == key]
            own = [jobs[run] for run in runs]
            self.groups.append(_RolloutGroup(own, runs, columns, self.partition))
        first = self.groups[0]
        self.refresh_table = RefreshTable.of(
            first.config.sketch.schedule,
            first.config.sketch.size,
            max(stream.longest for stream in first.streams),
            columns.device,
        )
        self.interleaved = any(group.interleaved for group in self.groups)
        single = self.interleaved or any(learns(group.policy) for group in self.groups)
        if single and len(self.groups) > 1:
            raise TypeError("runs with a learned policy or interleaved updates share a rollout")

    def traces(
        self, epoch: int, current: StackedModels, at_rollout: StackedModels
    ) -> tuple[Trace | None, Trace]:
        """Return training and validation traces, with the runs in the order of the jobs.

        There is no training trace if updates are interleaved.
        """
        pairs = [group.traces(epoch, current, at_rollout) for group in self.groups]
        training = [pair[0] for pair in pairs if pair[0] is not None]
        return _joined(training) if training else None, _joined([pair[1] for pair in pairs])

    @cached_property
    def all_users(self) -> Stream:
        """The training users of all runs, of all processes."""
        return make_stream([job.train for job in self.jobs], self.columns)

    def block(self, training: Trace, model: Recommender) -> TrainingBlock:
        """Return the block of a finished rollout."""
        return self.partition.block(
            lambda: self.all_users, training, lambda trace: full_history_block(trace, model)
        )

    def blocks(
        self,
        epoch: int,
        stack: StackedRecommenders,
        policies: StackedPolicies | None,
        skip: int = 0,
    ) -> Iterator[TrainingBlock]:
        """Yield the blocks of an interleaved rollout, without the first `skip` user batches."""
        return self.groups[0].blocks(epoch, stack, policies, skip)


def _split_halves(trace: Trace) -> tuple[Trace, Trace]:
    """Return the first and the second half of the runs of a trace."""
    count = (len(trace.run_rows) - 1) // 2
    return trace.part(0, count), trace.part(count, 2 * count)


def _joined(traces: Sequence[Trace]) -> Trace:
    """Return the traces of several groups as one."""
    if len(traces) == 1:
        return traces[0]
    stored = [trace for trace in traces if isinstance(trace, StoredTrace)]
    if len(stored) < len(traces):
        raise TypeError("a run with policy `all` cannot share a stack with runs that keep K")
    return concatenate(stored)
