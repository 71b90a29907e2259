"""Decisions of a policy with everything that credit assignment reads: inputs, losses, adjoints.

Decisions of one user are consecutive and in order of time. -1 pads everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from dips.credit.adjoint import Adjoint, loss_and_adjoint
from dips.numerics.fixed_point import PARAMETER_BITS, quantize
from dips.policy.stacked import StackedPolicies
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates


class DecisionInputs(NamedTuple):
    """Decisions as the policy saw them during the rollout, flat over runs."""

    candidates: Candidates  # [runs * decisions, candidates]
    kept: Tensor  # [runs * decisions, candidates] bool: the recorded choice
    owner: Tensor  # [runs * decisions] index of the user; -1 where there is no decision
    signals: dict[str, Tensor]  # [runs * decisions, candidates] recorded signals, by name


@dataclass(frozen=True, eq=False)
class CreditedDecisions:
    """A batch of decisions and the predictions that give them credit."""

    stack: StackedRecommenders
    policies: StackedPolicies
    trace: StoredTrace
    inputs: DecisionInputs
    predicted: Tensor
    """[runs, predictions] rows of the trace."""
    prediction_places: Tensor
    """[runs, decisions, longest period] predictions made from the sketch of each decision.

    They are the predictions between this refresh and the next. Values are indices into the second
    axis of `predicted`. There are as many as the period that follows; -1 pads.
    """
    size: int
    """Sketch size K."""

    @property
    def losses(self) -> Tensor:
        """[runs, predictions] loss of every prediction."""
        return self._losses_and_adjoint[0]

    @property
    def adjoint(self) -> Adjoint:
        """[runs, predictions, ...] adjoint of every prediction."""
        return self._losses_and_adjoint[1]

    @cached_property
    def _losses_and_adjoint(self) -> tuple[Tensor, Adjoint]:
        """Computed when first read: replay needs neither."""
        row = self.predicted.clamp_min(0)
        event = self.trace.event[row]
        target = (self.trace.columns.token[event], self.trace.columns.rating[event])
        seen = self.trace.seen_items(row, filtered=self.stack.template.masks_seen)
        with torch.no_grad():
            found: tuple[Tensor, Adjoint] = self.stack.call(
                loss_and_adjoint, self.trace.evidence(row), *target, seen
            )
        return found

    @property
    def step(self) -> Tensor:
        """[runs, predictions] number of interactions before each prediction."""
        return self.trace.step[self.predicted.clamp_min(0)]


def current_signals(
    stack: StackedRecommenders, policies: StackedPolicies, inputs: DecisionInputs
) -> dict[str, Tensor]:
    """Return the signals that the policies read: recorded ones, and item embeddings as of now."""
    if "embedding" not in policies.required_signals:
        return inputs.signals
    item = inputs.candidates.item
    split = item.view(stack.runs, -1, item.shape[1])
    vectors: Tensor = stack.call(lambda model, items: model.embedding(items), split)
    return {**inputs.signals, "embedding": quantize(vectors.flatten(0, 1), PARAMETER_BITS)}


def with_dropped_candidates(
    inputs: DecisionInputs, count: int, width: int
) -> tuple[DecisionInputs, Tensor]:
    """Add to each decision the candidates that earlier decisions dropped.

    Args:
        inputs: Decisions with their candidates.
        count: How many earlier decisions of the same user are looked up.
        width: Most candidates that one decision drops.

    Returns:
        Decisions with [runs * decisions, candidates + count * width] entries, and the weights of
        these entries: 1 for a candidate, 0 for a dropped candidate or an empty slot.
    """
    dropped = inputs.candidates.present & ~inputs.kept
    slot = (~dropped).long().sort(dim=1, stable=True).indices[:, :width]
    gone = dropped.gather(1, slot)
    fields = {
        name: value.gather(1, slot) for name, value in inputs.candidates.entries._asdict().items()
    }
    fields["position"] = torch.where(gone, fields["position"], -1)
    signals = {name: value.gather(1, slot) for name, value in inputs.signals.items()}
    entries = [[field] for field in inputs.candidates.entries]
    more = {name: [value] for name, value in inputs.signals.items()}
    for back in range(1, count + 1):
        earlier = torch.arange(len(gone), device=gone.device) - back
        same = (earlier >= 0) & (inputs.owner[earlier.clamp_min(0)] == inputs.owner)
        earlier = earlier.clamp_min(0)
        for column, (name, value) in zip(entries, fields.items(), strict=True):
            blank = -1 if name == "position" else 0
            column.append(torch.where(same[:, None], value[earlier], blank))
        for name, value in signals.items():
            more[name].append(value[earlier])
    joined = [torch.cat(column, 1) for column in entries]
    candidates = Candidates._make([*joined, inputs.candidates.seen, inputs.candidates.key])
    weight = torch.zeros_like(candidates.position, dtype=torch.float64)
    weight[:, : inputs.kept.shape[1]] = inputs.candidates.present.double()
    kept = torch.zeros_like(candidates.present)
    kept[:, : inputs.kept.shape[1]] = inputs.kept
    all_signals = {name: torch.cat(column, 1) for name, column in more.items()}
    return DecisionInputs(candidates, kept, inputs.owner, all_signals), weight
