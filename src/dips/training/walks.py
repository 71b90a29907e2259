"""The sketches that training reads: walks of all runs, grouped so that equal ones go together.

Walked once for policies that never change their mind, every epoch for those that draw lots, and
every `reroll` epochs for those that ask the recommender (their validation users every epoch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dips.data.interactions import Interactions
from dips.policy.base import Policy
from dips.policy.registry import make_policy
from dips.recommender.stack import Stack
from dips.rollout import StoredTrace, Trace, concatenate, rollout
from dips.sketch.selection import selector_named
from dips.stream.users import Columns, Stream, make_stream
from dips.training.config import TrainConfig


@dataclass(frozen=True, eq=False)
class Job:
    """One run: who trains, who validates, and the settings."""

    train: Interactions
    valid: Interactions
    config: TrainConfig


def policy_of(config: TrainConfig) -> Policy:
    """The policy that a run's settings name."""
    return make_policy(config.policy, size=config.size, damping=config.damping)


def group_key(config: TrainConfig) -> tuple[object, ...]:
    """Runs with the same key share one walk."""
    damping = config.damping if config.policy.startswith("influence") else None
    return (config.policy, config.size, config.schedule, config.choice, damping)


class _Group:
    """Runs of one policy, size and schedule."""

    def __init__(self, jobs: Sequence[Job], runs: Sequence[int], columns: Columns) -> None:
        self.jobs, self.runs = jobs, list(runs)
        self.config = jobs[0].config
        self.policy = policy_of(self.config)
        self.draws = self.policy.draws or self.config.choice == "sampled"
        train, valid = [job.train for job in jobs], [job.valid for job in jobs]
        self.apart = self.policy.asks and self.config.reroll > 1
        streams = [train, valid] if self.apart else [train + valid]
        self.streams = [make_stream(parts, columns) for parts in streams]
        self.training: Trace | None = None
        self.validation: Trace | None = None

    def walk(self, epoch: int, now: Stack, walked: Stack) -> tuple[Trace, Trace]:
        """Sketches for training in `epoch`, and for validating what was trained before it.

        Validation always sees the recommender as it is `now`. Training sees it as last `walked`;
        where that is the same, one walk serves both.
        """
        if self.apart:
            if self.training is None or (epoch - 1) % self.config.reroll == 0:
                self.training = self._roll(self.streams[0], walked, epoch)
            self.validation = self._roll(self.streams[1], now, 0)
        elif self.training is None or self.draws or self.policy.asks:
            both = self._roll(self.streams[0], now, epoch)
            self.training, self.validation = _halves(both)
        assert self.training is not None
        assert self.validation is not None
        return self.training, self.validation

    def _roll(self, stream: Stream, stack: Stack, epoch: int) -> Trace:
        times = stream.runs // len(self.jobs)
        seeds = [job.config.seed for job in self.jobs] * times
        keys = stream.keys(seeds, epoch)
        if times == 2:  # the second half validates, with the lots of epoch 0
            half = len(self.jobs)
            keys = torch.cat([keys[:half], stream.keys(seeds)[half:]])
        return rollout(
            stream,
            self.policy,
            size=self.config.size,
            schedule=self.config.schedule,
            keys=keys,
            recommenders=stack.select(self.runs * times) if self.policy.asks else None,
            selector=selector_named(self.config.choice),
        )


class Walks:
    """All groups of a stack of jobs; jobs of a group stand next to each other."""

    def __init__(self, jobs: Sequence[Job], columns: Columns) -> None:
        keys = [group_key(job.config) for job in jobs]
        self.groups = []
        for key in dict.fromkeys(keys):
            runs = [run for run, other in enumerate(keys) if other == key]
            self.groups.append(_Group([jobs[run] for run in runs], runs, columns))

    def sketches(self, epoch: int, now: Stack, walked: Stack) -> tuple[Trace, Trace]:
        """(training trace, validation trace), each with the runs in the order of the jobs."""
        pairs = [group.walk(epoch, now, walked) for group in self.groups]
        return _joined([pair[0] for pair in pairs]), _joined([pair[1] for pair in pairs])


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
