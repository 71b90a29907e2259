"""The full policy gradient (Eq. 9): sketch whole histories again under the current parameters.

Entry weights exist for all interactions so far, dropped ones included. Every refresh is
differentiated with respect to its scores and to the weights before it, so gradients flow along all
paths. The result is exact but for the straight-through slope of a hard choice. It is slow, and only
for tests and studies: the reference for the other forms of credit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from dips.credit.base import CreditAssignment
from dips.credit.decisions import CreditedDecisions
from dips.errors import ConfigError
from dips.numerics.relaxation import drop_one, keep_k
from dips.recommender.base import Evidence, Recommender
from dips.recommender.filtered_loss import prediction_losses
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates, Sketch, empty
from dips.sketch.selection import Greedy, Selector
from dips.sketch.update import join
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns

ScoreWeighted = Callable[[Candidates, Tensor], Tensor]
"""From all interactions so far and their weights [users, n] to scores [users, n]; high: keep."""


class Choice(NamedTuple):
    """A refresh as it was decided: a constant."""

    kept: Tensor  # [users, seen] bool
    offset: Tensor  # [users, seen] difference between hard and relaxed weights


class SketchState(NamedTuple):
    """The sketches after some refresh, over all `seen` interactions so far."""

    sketch: Sketch  # [users, seen]; position -1 where an interaction was dropped
    weight: Tensor  # [users, seen] entry weights z, differentiable


class Replayed(NamedTuple):
    """Predictions of a replay, and its refreshes."""

    losses: Tensor  # [users, T - since]; 0 beyond the end of a history
    choices: list[Choice]  # one per refresh
    weights: list[Tensor]  # [users, seen] entry weights z after each refresh


def replay(
    score_weighted: ScoreWeighted,
    model: Recommender,
    history: Candidates,
    size: int,
    schedule: Schedule,
    *,
    choices: Sequence[Choice] = (),
    selector: Selector | None = None,
    identity: bool = False,
    since: int = 0,
) -> Replayed:
    """Sketch whole histories and return the loss of every prediction, differentiable throughout.

    Args:
        score_weighted: Scores of a policy; its parameters may require gradients.
        model: Recommender; its parameters may require gradients.
        history: Whole histories, [users, T]; position -1 beyond their ends.
        size: Sketch size K.
        schedule: When sketches are refreshed.
        choices: Choices of an earlier replay. With them losses are smooth in the parameters.
        selector: Makes the choices if none are given; greedy by default.
        identity: Set the Jacobian of later refreshes to the identity, as Eq. 10 does.
        since: Leave out losses before this step.

    Returns:
        Losses [users, T - since], the choices, and the weights after each refresh.
    """
    longest = history.item.shape[1]
    refreshes = list(schedule.refreshes(size, longest - 1))
    ends = [*(seen for seen, _ in refreshes), longest]
    state, made, weights = _before_refreshes(history, size), list[Choice](), list[Tensor]()
    losses = [
        _losses(model, history, state.weight[:, :t], state.sketch.repeats, t, t + 1, t)
        for t in range(since, state.weight.shape[1])
    ]

    def add_losses(first: int, end: int) -> None:
        span = max(first, since), end
        losses.append(_losses(model, history, state.weight, state.sketch.repeats, *span, size))

    add_losses(size, ends[0])
    for turn, (seen, period) in enumerate(refreshes):
        state, choice = _refresh_once(
            score_weighted,
            history,
            state,
            seen,
            period,
            size,
            choices[turn] if choices else selector or Greedy(),
            identity,
        )
        made.append(choice)
        weights.append(state.weight)
        add_losses(seen, ends[turn + 1])
    return Replayed(torch.cat(losses, 1), made, weights)


def _before_refreshes(history: Candidates, size: int) -> SketchState:
    """Return the sketches that keep the first `size` interactions, all with weight 1."""
    # `join` counts repeats, but needs a sketch: an empty one of one slot, which is cut off again.
    nothing = empty(len(history.item), 1, history.item.device)
    entries = [field[:, 1:] for field in _joined(history, nothing, 0, size).entries]
    return SketchState(Sketch(*entries), torch.ones_like(history.rating[:, :size]))


def _refresh_once(
    score_weighted: ScoreWeighted,
    history: Candidates,
    before: SketchState,
    seen: int,
    period: int,
    size: int,
    choice: Choice | Selector,
    identity: bool,
) -> tuple[SketchState, Choice]:
    """Return the sketches after `seen` interactions, and the choice: the given one, or a new one.

    Interactions that were dropped before are scored too, with their weights.
    """
    candidates = _joined(history, before.sketch, seen - period, seen)
    weight = torch.cat([before.weight, torch.ones_like(history.rating[:, :period])], 1)
    given = weight.detach() if identity else weight
    position = history.position[:, :seen]
    scores = score_weighted(candidates._replace(position=position), given)
    relaxed = drop_one(scores, given) if period == 1 else keep_k(scores, given, size)
    relaxed = relaxed + (weight - given)  # adds 0; its gradient is the identity
    if isinstance(choice, Selector):
        slots = choice.choose(scores.detach(), candidates, size)
        kept = torch.zeros_like(relaxed.detach()).scatter(1, slots, 1.0)
        choice = Choice(kept > 0, kept - relaxed.detach())
    weight = relaxed + choice.offset  # hard values with the relaxed slope: Eq. 4 or Eq. 6
    sketch = candidates.entries._replace(position=torch.where(choice.kept, position, -1))
    return SketchState(sketch, weight), choice


def whole_histories(
    columns: EventColumns, first: Tensor, length: Tensor, key: Tensor
) -> Candidates:
    """Return histories as candidates, [users, longest].

    Args:
        columns: Interactions of all users.
        first: Index of each user's first interaction, [users].
        length: Interactions per user, [users].
        key: Key of each user's random numbers, [users].

    Returns:
        All interactions; position -1 beyond the end of a history.
    """
    place = torch.arange(int(length.max()), device=first.device)
    there = place < length[:, None]
    event = torch.where(there, first[:, None] + place, first[:, None])
    return Candidates(
        torch.where(there, place, -1),
        columns.item[event],
        columns.rating[event],
        columns.time[event],
        torch.ones_like(event),
        columns.side[event],
        length,
        key,
    )


@final
@dataclass(frozen=True)
class RecordedSelector(Selector):
    """Repeats the choices of a rollout."""

    positions: dict[int, Tensor]
    """[users, size] positions that were kept, by the number of interactions seen."""

    def choose(self, scores: Tensor, candidates: Candidates, size: int) -> Tensor:
        """Return what was kept when the users had seen so many interactions.

        In a replay all interactions are candidates, so slots are positions.
        """
        return self.positions[int(candidates.seen[0])]


@final
@dataclass(frozen=True)
class ReplayCredit(CreditAssignment):
    """The full gradient (Eq. 9) along the recorded choices: all paths through later refreshes.

    It needs whole histories in a batch, and a policy that takes weights and reads no signals.

    Args:
        schedule: When sketches are refreshed.
    """

    schedule: Schedule

    def credit(self, batch: CreditedDecisions) -> Tensor:
        """Return the gradient of all later losses with respect to the weights after a decision.

        Raises:
            ConfigError: If the policy reads signals, or histories do not begin in this batch.
        """
        if not batch.policies.takes_weights or batch.policies.required_signals:
            raise ConfigError(
                "credit 'replay' needs a policy that takes weights and reads no signals: "
                "set policy = dips, or credit = survival"
            )
        inputs = batch.inputs
        found = torch.zeros_like(inputs.candidates.rating)
        for run in range(batch.stack.runs):
            owner, gradients = self._weight_gradients(batch, run)
            for seen, gradient in gradients.items():
                decision = (inputs.candidates.seen == seen) & torch.isin(inputs.owner, owner)
                user = torch.searchsorted(owner, inputs.owner[decision])
                position = inputs.candidates.position[decision].clamp_min(0)
                found[decision] = gradient[user].gather(1, position)
        return found

    def _weight_gradients(
        self, batch: CreditedDecisions, run: int
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the users of a run, ascending, and gradients [users, seen] of each refresh."""
        trace, rows = batch.trace, batch.predicted[run]
        assert trace.inputs is not None
        rows = rows[rows >= 0]
        owner, place, length = torch.unique(
            trace.inputs.owner[rows], return_inverse=True, return_counts=True
        )
        first = torch.full_like(owner, len(trace.event)).scatter_reduce(0, place, rows, "amin")
        if bool((trace.step[first] > 0).any()):
            raise ConfigError(
                "credit 'replay' needs whole histories in a batch: "
                "leave update_interval unset, or set credit = survival"
            )
        history = whole_histories(
            trace.columns, trace.event[first], length, trace.inputs.key[first]
        )
        refreshes = [seen for seen, _ in self.schedule.refreshes(batch.size, int(length.max()) - 1)]
        selector = RecordedSelector(
            {
                seen: _recorded_positions(trace, first, length, seen, batch.size)
                for seen in refreshes
            }
        )
        policies = batch.policies
        state = {
            name: value[run : run + 1].detach().requires_grad_(name in policies.trainable)
            for name, value in policies.state.items()
        }

        def score_weighted(candidates: Candidates, weight: Tensor) -> Tensor:
            return policies.call(state, candidates, {}, weight)

        def gradients(model: Recommender) -> tuple[Tensor, ...]:
            found = replay(
                score_weighted, model, history, batch.size, self.schedule, selector=selector
            )
            return torch.autograd.grad(found.losses.sum(), found.weights)

        if not refreshes:
            return owner, {}
        with torch.enable_grad():
            found = batch.stack.select([run]).call(gradients)
        return owner, {seen: value[0] for seen, value in zip(refreshes, found, strict=True)}


def _recorded_positions(
    trace: StoredTrace, first: Tensor, length: Tensor, seen: int, size: int
) -> Tensor:
    """Return the positions [users, size] kept at this refresh; any where a history has ended."""
    row = first + torch.where(seen < length, seen, 0)
    kept = trace.kept[row].long() - trace.event[first][:, None]
    any_positions = torch.arange(size, device=kept.device)
    return torch.where((seen < length)[:, None], kept, any_positions)


def _joined(history: Candidates, sketch: Sketch, first: int, last: int) -> Candidates:
    """Return all interactions before `last`; those dropped from the sketch have position -1."""
    arrivals = Sketch(*(field[:, first:last] for field in history.entries))
    return join(sketch, arrivals, torch.full_like(history.seen, last), history.key)


def _losses(
    model: Recommender, history: Candidates, weight: Tensor, repeats: Tensor, first: int, last: int,
    slots: int,
) -> Tensor:  # fmt: skip
    """Return the losses [users, last - first] of these interactions, predicted from the weights.

    `repeats` [users, seen] is the repeat count of each interaction while it was in the sketch.
    """
    if last <= first:
        return history.rating[:, :0]
    by_step = model.has_recency_decay or model.counts_repeats or model.masks_seen
    if by_step and last > first + 1:  # ages and seen items change from step to step
        steps = range(first, last)
        return torch.cat(
            [_losses(model, history, weight, repeats, t, t + 1, slots) for t in steps], 1
        )
    width = max(1, weight.shape[1])
    evidence = Evidence(
        history.token[:, :width],
        history.rating[:, :width],
        torch.nn.functional.pad(weight, (0, width - weight.shape[1])),
        torch.full_like(history.seen, slots),
        (first - 1 - history.position[:, :width]).clamp_min(0).to(weight.dtype),
        repeats[:, :width].clamp_min(1).to(weight.dtype),
    )
    ahead = slice(first, last)
    targets = (history.token[:, ahead], history.rating[:, ahead])
    seen = history.item[:, :first] if model.masks_seen else None
    losses = prediction_losses(model, model.read(evidence), evidence, *targets, seen)
    return torch.where(history.present[:, ahead], losses, 0.0)
