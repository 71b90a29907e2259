"""The sketches that training reads: walks of all runs, grouped so that equal ones go together.

Walked once for policies that never change their mind, every epoch for those that draw lots, and
every `reroll` epochs for those that ask the recommender. The same walk serves the training users of
the next epoch and the validation users of the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dips.bundle import selector_named
from dips.data.interactions import Interactions
from dips.policy.base import Policy
from dips.policy.registry import make_policy
from dips.recommender.stack import Stack
from dips.rollout import StoredTrace, Trace, concatenate, rollout
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
    """Runs of one policy, size and schedule: training users first, then validation users."""

    def __init__(self, jobs: Sequence[Job], runs: Sequence[int], columns: Columns) -> None:
        self.jobs, self.runs = jobs, runs
        self.config = jobs[0].config
        self.policy = policy_of(self.config)
        self.draws = self.policy.draws or self.config.choice == "sampled"
        parts = [job.train for job in jobs] + [job.valid for job in jobs]
        self.stream: Stream = make_stream(parts, columns)
        self.trace: Trace | None = None

    def due(self, epoch: int) -> bool:
        """Whether the sketches of this epoch differ from the last ones."""
        if self.trace is None or self.draws:
            return True
        return self.policy.asks and (epoch - 1) % self.config.reroll == 0

    def walk(self, epoch: int, stack: Stack) -> Trace:
        """Sketches for training in `epoch`, and for validating what was trained before it."""
        if self.trace is None or self.due(epoch):
            seeds = [job.config.seed for job in self.jobs]
            count = len(seeds)
            fresh = self.stream.keys(seeds + seeds, epoch)
            keys = torch.cat([fresh[:count], self.stream.keys(seeds + seeds)[count:]])
            self.trace = rollout(
                self.stream,
                self.policy,
                size=self.config.size,
                schedule=self.config.schedule,
                keys=keys,
                recommenders=stack.select([*self.runs, *self.runs]) if self.policy.asks else None,
                selector=selector_named(self.config.choice),
            )
        return self.trace


class Walks:
    """All groups of a stack of jobs; jobs of a group stand next to each other."""

    def __init__(self, jobs: Sequence[Job], columns: Columns) -> None:
        keys = [group_key(job.config) for job in jobs]
        self.groups = []
        for key in dict.fromkeys(keys):
            runs = [run for run, other in enumerate(keys) if other == key]
            self.groups.append(_Group([jobs[run] for run in runs], runs, columns))

    def sketches(self, epoch: int, stack: Stack) -> tuple[Trace, Trace]:
        """(training trace, validation trace), each with the runs in the order of the jobs."""
        traces = [group.walk(epoch, stack) for group in self.groups]
        halves = [_halves(trace) for trace in traces]
        return _joined([half[0] for half in halves]), _joined([half[1] for half in halves])


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
