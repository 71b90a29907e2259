"""Histories cut into sessions: a prediction reads the session so far, and a sketch.

The sketch is that of the session's start, so it holds nothing of the session itself. Sketches are
refreshed at the starts of sessions, whatever their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import torch

from dips.policy.stacked import StackedPolicies
from dips.recommender.base import Recommender
from dips.recommender.session import LENGTH
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import FullHistoryTrace, StoredTrace, Trace
from dips.stream.schedule import Schedule
from dips.stream.users import Stream
from dips.training.batches import FullHistoryBlock, TrainingBlock
from dips.training.policy_batches import RefreshTable
from dips.training.rollouts import StackedModels

RollOut = Callable[[Stream, int], Trace]
"""From users and an epoch to the trace of their rollout."""


def session_schedule(size: int, longest: int) -> Schedule:
    """Return the schedule that refreshes at each start of a session after the first `size` items.

    >>> list(in_time(2, 12).refreshes(2, 12)), list(in_time(8, 16).refreshes(8, 16))
    ([(4, 2), (8, 4), (12, 4)], [(12, 4), (16, 4)])
    """
    return Schedule((LENGTH - size % LENGTH, *[LENGTH] * (longest // LENGTH)))


def sessions(trace: Trace) -> StoredTrace:
    """Return a trace whose predictions read the sketch of the session's start and the session.

    Entries of the sketch stand first. A full-history trace stands for users without a sketch.
    Until more than K items have come, the sketch holds those of all finished sessions.
    """
    begun = trace.step % LENGTH
    place = torch.arange(LENGTH - 1, device=begun.device)
    session = (trace.event - begun)[:, None] + place
    shown = torch.where(place < begun[:, None], session, -1).int()
    repeats = torch.ones_like(shown)
    if not isinstance(trace, FullHistoryTrace):
        first = torch.arange(len(begun), device=begun.device) - begun
        shown = torch.cat([trace.sketches(first), shown], 1)
        repeats = torch.cat([trace.repeats_of(first), repeats], 1)
    fields = (trace.columns, trace.event, trace.user, trace.step, trace.run_rows)
    return StoredTrace(*fields, shown, repeats, None)


@final
class Sessions:
    """Traces of a fixed policy, with sketches from the starts of sessions.

    Random policies get new priorities in every training epoch.
    """

    interleaved = False

    def __init__(self, train: Stream, valid: Stream, roll_out: RollOut, *, is_random: bool) -> None:
        self.train, self.roll_out, self.is_random = train, roll_out, is_random
        self.validation = sessions(roll_out(valid, 0))
        self.training: StoredTrace | None = None
        self.refresh_table = RefreshTable.of(
            Schedule((LENGTH,)), 1, train.longest, train.start.device
        )

    def traces(
        self, epoch: int, current: StackedModels, at_rollout: StackedModels
    ) -> tuple[Trace | None, Trace]:
        """Return training and validation traces; they do not depend on the models."""
        del current, at_rollout
        if self.training is None or self.is_random:
            self.training = sessions(self.roll_out(self.train, epoch))
        return self.training, self.validation

    def block(self, training: Trace, model: Recommender) -> TrainingBlock:
        """Return all predictions in one block."""
        del model
        return FullHistoryBlock(training)

    def blocks(
        self,
        epoch: int,
        stack: StackedRecommenders,
        policies: StackedPolicies | None,
        skip: int = 0,
    ) -> Iterator[TrainingBlock]:
        """Return none: updates are never interleaved."""
        return iter(())
