"""One run at work: arrivals in, sketches changed, by the same transition as training's.

Knows nothing of stores, names or duplicates. What happens to a user never depends on who else is in
the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Protocol, final

import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.kernels import numba_launch
from dips.kernels.triton_launch import Arrivals, Kept
from dips.model.trained_model import TrainedModel
from dips.numerics.hashing import combine
from dips.policy.base import Policy
from dips.policy.recency import Last
from dips.policy.reservoir import Mix, Reservoir
from dips.policy.set_network import LOGS, SetNetwork, grid_layers
from dips.policy.stacked import StackedPolicies
from dips.recommender.kernel_inputs import is_answered, teller_of, vectors_of
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.serve.arrivals import rounds
from dips.serve.user_states import States
from dips.serve.unknown_items import hidden, hide_unknown, numbered, widened
from dips.sketch.records import Candidates, Sketch
from dips.sketch.selection import Greedy
from dips.sketch.signals import Signals
from dips.sketch.update import decide, fill

WAIT, FILL = -1, 0
SHIFT = 20
"""Kinds of arrivals: wait, fill, or a refresh of so many kept (above these bits) and waiting."""

EVERYTHING = 1 << 62
"""So many of the newest are all."""
Loop = Callable[[Kept, Arrivals, Callable[[], Tensor], Tensor], None]
"""What arrivals do to sketches, given identities and numbers as in `Engine.arrive_all`."""


class Watcher(Protocol):
    """Is told of every refresh."""

    def watch(
        self, sketch: Sketch, arrivals: Sketch, seen: Tensor, identity: Tensor, fresh: Sketch
    ) -> None:
        """What was there, what came, whose it is, and what was kept."""


@final
class Engine:
    """A policy, its recommender and its schedule, ready to decide."""

    def __init__(self, trained: TrainedModel, *, widest: int = 0) -> None:
        """`widest` is the most entries that a record of another run may hold."""
        if trained.policy.keeps_all:
            raise ConfigError("the policy 'all' keeps everything: there is no sketch to keep")
        self.trained, self.size = trained, trained.size
        self.schedule, self.longest = trained.schedule, trained.schedule.longest
        rows = max(self.size, widest) + self.longest + 1
        policy = widened(trained, rows)
        self._policy = StackedPolicies.of([policy]) if isinstance(policy, SetNetwork) else policy
        self._selector = trained.selector
        required_signals = trained.policy.required_signals
        self._settled = (
            StackedRecommenders.of([trained.recommender]).quantized() if required_signals else None
        )
        self._items = len(trained.item_ids)
        self._loop = self._compiled()
        self.shadow: Watcher | None = None

    @torch.no_grad()
    def arrive_all(
        self,
        states: States,
        row: Tensor,
        arrivals: Sketch,
        identity: Callable[[], Tensor],
        number: Tensor,
    ) -> None:
        """These users, `row` [events], have more interactions, in this order: `arrivals` [events].

        Where loops are compiled, at once; else the first of every user, then the second, and so on.
        `identity` is asked only where it is needed.
        """
        plain = states.depth == 1 and states.sketch.position.shape[1] == self.size
        if self._loop is not None and plain and self.shadow is None:
            columns = (arrivals.item, arrivals.rating, arrivals.time, arrivals.side)
            kept = Kept(*states.sketch, states.seen)
            self._loop(kept, Arrivals(row, *columns), identity, number)
            return
        whose, once = identity(), bool((row.diff() > 0).all())
        for places in [slice(None)] if once else rounds(row.numpy()):
            part = Sketch(*(column[places, None] for column in arrivals))
            self.arrive(states, row[places], part, whose, number)

    @torch.no_grad()
    def arrive(
        self, states: States, users: Tensor, arrivals: Sketch, identity: Tensor, number: Tensor
    ) -> None:
        """Each of these users, each once and in order, has one more interaction: `arrivals` [n, 1].

        `identity` [users of the batch], from their names; `number` tells the run's number of each
        item code.
        """
        states.seen[users] += 1
        seen, whose = states.seen[users], identity[users]
        arrivals = arrivals._replace(position=seen[:, None] - 1)
        waiting = self._waiting(states, users, arrivals)
        count = waiting.present.sum(1)
        kept = _taken(states.sketch, users).present.sum(1)
        width = kept.clamp_min(self.size)  # more where a record comes from a larger sketch
        fits = kept + count <= self.size
        due = (count >= self.longest) | (kept > self.size)
        if self.longest > 1:
            due |= self.schedule.due(self.size, seen)
        kind = torch.where(fits, FILL, torch.where(due, width << SHIFT | count, WAIT))
        kinds = set(kind.tolist())
        for which in kinds:
            rows = (kind == which).nonzero()[:, 0] if len(kinds) > 1 else slice(None)
            these, part = users[rows], Sketch(*(field[rows] for field in waiting))
            if which != WAIT:
                fresh = self._changed(states, these, part, whose[rows], number, which)
                _put(states.sketch, these, fresh)
                part = _blank(part)
            if states.depth > 1:
                _put(states.waiting, these, part)

    def _compiled(self) -> Loop | None:
        """All that happens at arrivals as one compiled loop, if there is one."""
        simple = self.longest == 1 and isinstance(self._selector, Greedy)
        if not simple or not numba_launch.installed("numba"):
            return None
        newest = _newest(self._policy)
        return self._by_network() if newest is None else partial(self._by_lots, newest)

    def _by_lots(
        self,
        newest: int,
        kept: Kept,
        arrivals: Arrivals,
        identity: Callable[[], Tensor],
        number: Tensor,
    ) -> None:
        """Arrivals where only ages and lots count, whatever the items are."""
        del number
        no_lots = newest == EVERYTHING
        key = torch.zeros_like(kept.seen) if no_lots else self._key(identity())
        numba_launch.keep_newest(kept, arrivals, key, newest)

    def _by_network(self) -> Loop | None:
        """Arrivals under a network over sets that sees items, and perhaps what it is told."""
        policy, stack = self._policy, self._settled
        if not isinstance(policy, StackedPolicies) or stack is None:
            return None
        if not isinstance(policy.template, SetNetwork) or policy.template.side.width:
            return None
        if "embedding" not in policy.required_signals or not is_answered(
            policy.required_signals, stack.template
        ):
            return None
        net, vectors = grid_layers(policy.state, LOGS), vectors_of(stack)[0]
        teller = teller_of(
            policy.required_signals, stack, stack, torch.arange(len(vectors)), self.size
        )
        made = cache(
            partial(numba_launch.keeper, net, vectors, teller)
        )  # at the first: it compiles

        def act(
            kept: Kept, arrivals: Arrivals, identity: Callable[[], Tensor], number: Tensor
        ) -> None:
            del identity
            made()(kept, arrivals, number)

        return act

    def _key(self, identity: Tensor) -> Tensor:
        """[users] draws as in evaluation."""
        return combine(identity, self.trained.seed, 0)

    def _waiting(self, states: States, users: Tensor, arrivals: Sketch) -> Sketch:
        """What these users wait with, the newest arrival included."""
        if states.depth == 1:  # every arrival is settled at once
            return arrivals
        waiting = _taken(states.waiting, users)
        slot = waiting.present.sum(1, keepdim=True)
        return Sketch(*(w.scatter(1, slot, a) for w, a in zip(waiting, arrivals, strict=True)))

    def _changed(
        self,
        states: States,
        users: Tensor,
        waiting: Sketch,
        identity: Tensor,
        number: Tensor,
        kind: int,
    ) -> Sketch:
        """The sketches after these arrivals: all of one kind, so that all have the same shape."""
        wide, deep = divmod(kind, 1 << SHIFT)
        if kind == FILL:
            wide, deep = self.size, waiting.position.shape[1]
        before = Sketch(*(field[:, :wide] for field in _taken(states.sketch, users)))
        arrivals, seen = Sketch(*(field[:, :deep] for field in waiting)), states.seen[users]
        if kind == FILL:
            fresh = fill(before, arrivals, seen, identity, self.size)
        else:
            fresh = self.refreshed(before, arrivals, seen, identity, number)
            if self.shadow is not None:
                self.shadow.watch(before, arrivals, seen, identity, fresh)
        return _padded(fresh, states.sketch.position.shape[1])

    @torch.no_grad()
    def shrink(self, states: States, identity: Tensor, number: Tensor) -> list[int]:
        """Choose anew for users whose sketch is too large; returns who they are.

        What waits goes on waiting.
        """
        kept = states.sketch.present.sum(1)
        large = sorted(set(kept[kept > self.size].tolist()))
        for wide in large:
            users = (kept == wide).nonzero()[:, 0]
            before = Sketch(*(field[users, :wide] for field in states.sketch))
            none = Sketch(*(field[:, :0] for field in before))
            fresh = self.refreshed(before, none, states.seen[users], identity[users], number)
            _put(states.sketch, users, _padded(fresh, states.sketch.position.shape[1]))
        changed: list[int] = (kept > self.size).nonzero()[:, 0].tolist()
        return changed

    def refreshed(
        self, sketch: Sketch, arrivals: Sketch, seen: Tensor, identity: Tensor, number: Tensor
    ) -> Sketch:
        """Choose anew which interactions each user keeps."""

        def score(before: Sketch, candidates: Candidates) -> Tensor:
            item, unknown = numbered(candidates.item, number, self._items)
            named = candidates._replace(item=item)
            kept = before.position.shape[1]
            return self._policy.score(named, self._signals(named, unknown & named.present, kept))

        return decide(
            sketch, arrivals, seen, self._key(identity), score, self._selector, self.size
        )[0]

    def _signals(self, candidates: Candidates, unknown: Tensor, kept: int) -> Signals:
        """The recommender's answers; the first `kept` candidates are the sketch before."""
        if self._settled is None:
            return Signals()
        cold = bool(unknown.any())
        known = hidden(candidates, unknown) if cold else candidates
        sketch = Sketch(*(field[:, :kept] for field in known.entries))
        signals = recommender_signals(self._settled, sketch, known)
        return hide_unknown(signals, unknown) if cold else signals


def _newest(policy: Policy) -> int | None:
    """How many of the newest always stay, of policies that sample what is older; else None."""
    if isinstance(policy, Mix):
        return policy.newest
    return {Last: EVERYTHING, Reservoir: 0}.get(type(policy))


def _taken(fields: Sketch, users: Tensor) -> Sketch:
    """The rows of these users; users are in order, so as many as there are means all."""
    if len(users) == len(fields.position):
        return fields
    return Sketch(*(field[users] for field in fields))


def _put(fields: Sketch, users: Tensor, values: Sketch) -> None:
    everyone = len(users) == len(fields.position)
    for field, value in zip(fields, values, strict=True):
        field[slice(None) if everyone else users] = value


def _blank(entries: Sketch) -> Sketch:
    """Empty slots of the same shape."""
    nothing = (torch.zeros_like(field) for field in entries)
    return Sketch(*nothing)._replace(position=torch.full_like(entries.position, -1))


def _padded(sketch: Sketch, width: int) -> Sketch:
    """The same in so many slots, empty ones at the end."""
    more = width - sketch.position.shape[1]
    if more == 0:
        return sketch
    blank = _blank(Sketch(*(field[:, :1].expand(-1, more) for field in sketch)))
    return Sketch(*(torch.cat(pair, 1) for pair in zip(sketch, blank, strict=True)))
