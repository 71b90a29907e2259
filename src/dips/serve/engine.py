"""Apply arrivals to sketches with a trained model, by the same transition as in training.

Knows nothing of stores, names or duplicates. The result for a user does not depend on the other
users in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol, final

import torch
from torch import Tensor, nn

from dips.errors import ConfigError
from dips.kernels import dispatch
from dips.kernels.layout import EventArrays, SketchArrays
from dips.model.trained_model import TrainedModel
from dips.numerics.hashing import combine
from dips.policy.base import Policy, signals_of
from dips.policy.kernel_inputs import decision_spec, scorer_of
from dips.policy.set_network import SetNetwork
from dips.policy.stacked import StackedPolicies
from dips.recommender.kernel_inputs import item_vectors, model_spec, signal_model
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.serve.arrivals import rounds
from dips.serve.recommend import with_stored_sums
from dips.serve.unknown_items import (
    extend_item_tables,
    hide_unknown,
    mask_unknown,
    model_item_numbers,
)
from dips.serve.user_states import UserStates
from dips.sketch.records import Candidates, Sketch
from dips.sketch.selection import Greedy
from dips.sketch.signals import Signals
from dips.sketch.update import decide, fill

WAIT, FILL = -1, 0
SHIFT = 20
"""Kinds of transitions: wait, fill, or a refresh: `kept << SHIFT | waiting`, both counts."""


class RefreshObserver(Protocol):
    """Is called after every refresh."""

    def compare(
        self, sketch: Sketch, arrivals: Sketch, seen: Tensor, user_keys: Tensor, refreshed: Sketch
    ) -> None:
        """Compare a decision of the live model with the decision of the observer.

        Args:
            sketch: Sketches before the refresh, [users, size].
            arrivals: Interactions since the last refresh, [users, n].
            seen: Number of interactions so far, [users].
            user_keys: Keys of the users for random priorities, [users].
            refreshed: Sketches after the refresh, [users, size].
        """


@final
class Engine:
    """Policy, recommender and schedule of a trained model, ready to update sketches.

    Args:
        trained: The trained model.
        widest: Most entries that a record written by another model may hold.

    Raises:
        ConfigError: The policy keeps everything, so there is no sketch.
    """

    def __init__(self, trained: TrainedModel, *, widest: int = 0) -> None:
        if trained.policy.keeps_all:
            raise ConfigError("the policy 'all' keeps everything: there is no sketch to keep")
        self.trained = trained = with_stored_sums(trained)
        self.size = trained.size
        self.schedule, self.longest = trained.schedule, trained.schedule.longest
        rows = max(self.size, widest) + self.longest + 1
        policy = extend_item_tables(trained, rows)
        self._policy = StackedPolicies.of([policy]) if isinstance(policy, SetNetwork) else policy
        self._selector = trained.selector
        required_signals = trained.policy.required_signals
        self._quantized = (
            StackedRecommenders.of([trained.recommender]).quantized() if required_signals else None
        )
        self._items = len(trained.item_ids)
        self._is_compiled = self._has_kernel()
        self.shadow: RefreshObserver | None = None

    @torch.no_grad()
    def apply_arrivals(
        self,
        states: UserStates,
        row: Tensor,
        arrivals: Sketch,
        user_keys: Callable[[], Tensor],
        item_index: Tensor,
    ) -> None:
        """Update the sketches of users by new interactions, in order of arrival.

        The compiled path takes all arrivals at once. The reference path takes the first arrival of
        every user, then the second, and so on.

        Args:
            states: States of the users in the batch; changed in place.
            row: Which user each arrival belongs to, [arrivals].
            arrivals: Columns of the new interactions, each [arrivals].
            user_keys: Returns the keys of the users for random priorities, [users]. Called only
                where they are needed.
            item_index: Model item of every code of the store; -1 for unknown items, [codes].
        """
        has_model_shape = states.depth == 1 and states.sketch.position.shape[1] == self.size
        if self._is_compiled and has_model_shape and self.shadow is None:
            events = EventArrays(arrivals.item, arrivals.rating, arrivals.time, arrivals.side)
            keys = torch.zeros(0, dtype=torch.int64)
            if self.trained.policy.is_random:
                keys = self._random_key(user_keys())
            sketch = SketchArrays(*states.sketch)
            self._observe(sketch, states.seen, row, events, keys, item_index)
            return
        keys, is_one_round = user_keys(), bool((row.diff() > 0).all())
        for indices in [slice(None)] if is_one_round else rounds(row.numpy()):
            part = Sketch(*(column[indices, None] for column in arrivals))
            self.apply_round(states, row[indices], part, keys, item_index)

    @torch.no_grad()
    def apply_round(
        self,
        states: UserStates,
        users: Tensor,
        arrivals: Sketch,
        user_keys: Tensor,
        item_index: Tensor,
    ) -> None:
        """Update the sketches of users by one new interaction each.

        Args:
            states: States of the users in the batch; changed in place.
            users: Rows of the users with a new interaction, each once and sorted, [n].
            arrivals: Columns of the new interactions, each [n, 1].
            user_keys: Keys of the users for random priorities, [users].
            item_index: Model item of every code of the store; -1 for unknown items, [codes].
        """
        states.seen[users] += 1
        seen, keys = states.seen[users], user_keys[users]
        arrivals = arrivals._replace(position=seen[:, None] - 1)
        waiting = self._waiting(states, users, arrivals)
        count = waiting.present.sum(1)
        kept = _take(states.sketch, users).present.sum(1)
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
                updated = self._transition(states, these, part, keys[rows], item_index, which)
                _put(states.sketch, these, updated)
                part = _blank(part)
            if states.depth > 1:
                _put(states.waiting, these, part)

    def _has_kernel(self) -> bool:
        """Return whether a kernel updates sketches: see the table in `dips.kernels.dispatch`."""
        model = None if self._quantized is None else model_spec(self._quantized.template)
        spec = decision_spec(
            self._template,
            model,
            size=self.size,
            period=self.longest,
            is_greedy=isinstance(self._selector, Greedy),
        )
        return dispatch.has_keeper(spec)

    @property
    def _template(self) -> Policy:
        """The policy, not stacked."""
        policy = self._policy
        if isinstance(policy, StackedPolicies):
            assert isinstance(policy.template, Policy)
            return policy.template
        return policy

    @cached_property
    def _observe(self) -> dispatch.ArrivalKernel:
        """The kernel, created at the first arrival because that may compile it."""
        policy, names, stack = self._policy, signals_of(self._template), self._quantized
        model, vectors = None, None
        if stack is not None:
            vectors = item_vectors(stack)
            items = torch.arange(vectors.shape[1])
            model = signal_model(names, stack, stack, items, self.size)
        if isinstance(policy, nn.Module):
            policy = StackedPolicies.of([policy])
        scorer = scorer_of(
            self._template,
            policy.state if isinstance(policy, StackedPolicies) else {},
            runs=1,
            signal_model=model,
            vectors=vectors if "embedding" in names else None,
            table_rows=dispatch.TABLE_ROWS,
        )
        return dispatch.keeper(scorer)

    def _random_key(self, user_keys: Tensor) -> Tensor:
        """Return the keys of random priorities, [users]; the same as in evaluation."""
        return combine(user_keys, self.trained.seed, 0)

    def _waiting(self, states: UserStates, users: Tensor, arrivals: Sketch) -> Sketch:
        """Return the users' waiting interactions, the new one included."""
        if states.depth == 1:  # nothing waits: every arrival leads to a decision
            return arrivals
        waiting = _take(states.waiting, users)
        slot = waiting.present.sum(1, keepdim=True)
        return Sketch(*(w.scatter(1, slot, a) for w, a in zip(waiting, arrivals, strict=True)))

    def _transition(
        self,
        states: UserStates,
        users: Tensor,
        waiting: Sketch,
        user_keys: Tensor,
        item_index: Tensor,
        kind: int,
    ) -> Sketch:
        """Return the new sketches of users whose transition is of one kind, so of one shape."""
        width, depth = divmod(kind, 1 << SHIFT)
        if kind == FILL:
            width, depth = self.size, waiting.position.shape[1]
        before = Sketch(*(field[:, :width] for field in _take(states.sketch, users)))
        arrivals, seen = Sketch(*(field[:, :depth] for field in waiting)), states.seen[users]
        if kind == FILL:
            after = fill(before, arrivals, seen, user_keys, self.size)
        else:
            after = self.refresh(before, arrivals, seen, user_keys, item_index)
            if self.shadow is not None:
                self.shadow.compare(before, arrivals, seen, user_keys, after)
        return _pad(after, states.sketch.position.shape[1])

    @torch.no_grad()
    def shrink(self, states: UserStates, user_keys: Tensor, item_index: Tensor) -> list[int]:
        """Reduce sketches that are larger than the model's size; waiting interactions stay.

        Args:
            states: States of users; changed in place.
            user_keys: Keys of the users for random priorities, [users].
            item_index: Model item of every code of the store; -1 for unknown items, [codes].

        Returns:
            Rows of the users whose sketch was changed.
        """
        kept = states.sketch.present.sum(1)
        too_large = sorted(set(kept[kept > self.size].tolist()))
        for width in too_large:
            users = (kept == width).nonzero()[:, 0]
            before = Sketch(*(field[users, :width] for field in states.sketch))
            none = Sketch(*(field[:, :0] for field in before))
            after = self.refresh(before, none, states.seen[users], user_keys[users], item_index)
            _put(states.sketch, users, _pad(after, states.sketch.position.shape[1]))
        changed: list[int] = (kept > self.size).nonzero()[:, 0].tolist()
        return changed

    def refresh(
        self,
        sketch: Sketch,
        arrivals: Sketch,
        seen: Tensor,
        user_keys: Tensor,
        item_index: Tensor,
    ) -> Sketch:
        """Decide which interactions each user keeps.

        Args:
            sketch: Sketches before the refresh, [users, width].
            arrivals: Interactions since the last refresh, [users, n].
            seen: Number of interactions so far, [users].
            user_keys: Keys of the users for random priorities, [users].
            item_index: Model item of every code of the store; -1 for unknown items, [codes].

        Returns:
            Sketches after the refresh, [users, size].
        """

        def score(before: Sketch, candidates: Candidates) -> Tensor:
            item, unknown = model_item_numbers(candidates.item, item_index, self._items)
            numbered = candidates._replace(item=item)
            unknown = unknown & numbered.present
            kept = before.position.shape[1]
            return self._policy.score(numbered, self._signals(numbered, unknown, kept))

        keys = self._random_key(user_keys)
        return decide(sketch, arrivals, seen, keys, score, self._selector, self.size)[0]

    def _signals(self, candidates: Candidates, unknown: Tensor, kept: int) -> Signals:
        """Return the recommender's signals; the first `kept` candidates are the sketch before."""
        if self._quantized is None:
            return Signals()
        has_unknown = bool(unknown.any())
        known = mask_unknown(candidates, unknown) if has_unknown else candidates
        sketch = Sketch(*(field[:, :kept] for field in known.entries))
        signals = recommender_signals(self._quantized, sketch, known)
        return hide_unknown(signals, unknown) if has_unknown else signals


def _take(fields: Sketch, users: Tensor) -> Sketch:
    """Return the rows of sorted users; as many users as rows means all of them."""
    if len(users) == len(fields.position):
        return fields
    return Sketch(*(field[users] for field in fields))


def _put(fields: Sketch, users: Tensor, values: Sketch) -> None:
    """Write the rows of sorted users in place."""
    is_all = len(users) == len(fields.position)
    for field, value in zip(fields, values, strict=True):
        field[slice(None) if is_all else users] = value


def _blank(entries: Sketch) -> Sketch:
    """Return empty slots, in the shape of a sketch."""
    zeros = (torch.zeros_like(field) for field in entries)
    return Sketch(*zeros)._replace(position=torch.full_like(entries.position, -1))


def _pad(sketch: Sketch, width: int) -> Sketch:
    """Return a sketch with empty slots appended, [users, width]."""
    more = width - sketch.position.shape[1]
    if more == 0:
        return sketch
    blank = _blank(Sketch(*(field[:, :1].expand(-1, more) for field in sketch)))
    return Sketch(*(torch.cat(pair, 1) for pair in zip(sketch, blank, strict=True)))
