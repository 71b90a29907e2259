"""Histories cut into sessions: what is known at a prediction is the session so far, and a sketch.

The sketch is that of the session's start: nothing of the session is in it, and everything before it
had its chance. So refreshes come in time with the sessions, whatever the size of the sketch.
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
from dips.training.batches import Block, Whole
from dips.training.policy_batches import Clock
from dips.training.rollouts import Players

Roll = Callable[[Stream, int], Trace]
"""From users and an epoch to their sketches."""


def in_time(size: int, longest: int) -> Schedule:
    """Refresh at the starts of sessions: the first once more than `size` has come, then all.

    >>> list(in_time(2, 12).refreshes(2, 12)), list(in_time(8, 16).refreshes(8, 16))
    ([(4, 2), (8, 4), (12, 4)], [(12, 4), (16, 4)])
    """
    return Schedule((LENGTH - size % LENGTH, *[LENGTH] * (longest // LENGTH)))


def sessions(trace: Trace) -> StoredTrace:
    """The same predictions: from the sketch of the session's start, and the session so far.

    Sketches stand first; a trace that keeps everything is taken as one of users without a sketch.
    Every history counts from its beginning. Before more than K items have come the sketch holds
    those of the sessions that are over.
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
    """Sketches for training, those of a policy that stands still, at the starts of sessions.

    A policy that draws lots draws them anew for every epoch of training, as everywhere.
    """

    live = False

    def __init__(self, train: Stream, valid: Stream, roll: Roll, *, draws: bool) -> None:
        self.train, self.roll, self.is_random = train, roll, draws
        self.validation = sessions(roll(valid, 0))
        self.training: StoredTrace | None = None
        self.clock = Clock.of(Schedule((LENGTH,)), 1, train.longest, train.start.device)

    def sketches(self, epoch: int, now: Players, walked: Players) -> tuple[Trace | None, Trace]:
        """Nothing here depends on who is trained."""
        del now, walked
        if self.training is None or self.is_random:
            self.training = sessions(self.roll(self.train, epoch))
        return self.training, self.validation

    def block(self, training: Trace, model: Recommender) -> Block:
        """All predictions, in any order."""
        del model
        return Whole(training)

    def blocks(
        self,
        epoch: int,
        stack: StackedRecommenders,
        policies: StackedPolicies | None,
        skip: int = 0,
    ) -> Iterator[Block]:
        """Nobody walks live."""
        return iter(())
