"""Items that a run never met: legal, and handled alike whatever the policy and the recommender.

The recommender knows nothing of such an item: its vector is zero, its loss and residual are zero,
it is expected no more than the least expected of the others, and it does not move the user's
vector. A policy that has a row per item (the paper's network) takes the average of all rows for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from dips.model.trained_model import TrainedModel
from dips.policy.base import Policy, Reading, Signals
from dips.policy.registry import build_policy
from dips.sketch.records import Candidates


def numbered(item: Tensor, number: Tensor, items: int) -> tuple[Tensor, Tensor]:
    """Items as the run numbers them [users, n], and which of them it does not know.

    `number` tells the run's number of each code, -1 where there is none. Within a row different
    unknown items get different numbers from `items` on, repeats the same one.
    """
    known = number[item]
    unknown = known < 0
    if not bool(unknown.any()):
        return known, unknown
    first = (item[:, :, None] == item[:, None, :]).int().argmax(2)
    return torch.where(unknown, items + first, known), unknown


def widened(trained: TrainedModel, rows: int) -> Policy:
    """The policy with so many more items, each of which is the average of those it knows."""
    policy, spec = trained.policy, trained.policy_spec
    if not isinstance(policy, nn.Module):
        return policy
    wider = build_policy(replace(spec, items=spec.items + rows))
    assert isinstance(wider, nn.Module)
    state = {}
    for name, value in wider.state_dict().items():
        known = policy.state_dict()[name]
        state[name] = known if known.shape == value.shape else _padded(known, value, spec.items)
    wider.load_state_dict(state)
    wider.eval().requires_grad_(False)
    return wider


def _padded(known: Tensor, wider: Tensor, items: int) -> Tensor:
    """A table with more rows: averages of numbers; codes stay as they start, which is none."""
    padded = wider.clone()
    padded[: len(known)] = known
    if known.is_floating_point():
        block = len(known) // items  # some tables have several rows per item
        mean = known.view(items, block, -1).double().mean(0)
        padded[len(known) :] = mean.repeat(len(padded) // block - items, 1).view_as(
            padded[len(known) :]
        )
    return padded


def hidden(entries: Candidates, unknown: Tensor) -> Candidates:
    """Without the unknown items: their slots are empty, so nobody looks them up."""
    return entries._replace(
        position=entries.position.masked_fill(unknown, -1),
        item=entries.item.masked_fill(unknown, 0),
    )


@final
class ColdSignals:
    """The recommender's answers, and zero for items that it does not know."""

    def __init__(self, signals: Signals, unknown: Tensor) -> None:
        self._signals, self._unknown = signals, unknown

    def loss(self) -> Tensor:
        """[users, candidates]."""
        return self._signals.loss().masked_fill(self._unknown, 0.0)

    def residual(self) -> Tensor:
        """[users, candidates]."""
        return self._signals.residual().masked_fill(self._unknown, 0.0)

    def predicted_score(self) -> Tensor:
        """[users, candidates]; who cannot come next is as likely as the least likely of the others.

        Scores of a softmax mean nothing by themselves, so 0 would be anything.
        """
        found = self._signals.predicted_score()
        least = found.masked_fill(self._unknown, torch.inf).amin(1, keepdim=True)
        return torch.where(self._unknown, least.where(least.isfinite(), 0.0), found)

    def embedding(self) -> Tensor:
        """[users, candidates, dim]."""
        return self._signals.embedding().masked_fill(self._unknown[..., None], 0.0)

    def read(self, weights: Tensor) -> Reading:
        """Adapt to the items that are known."""
        reading = self._signals.read(weights.masked_fill(self._unknown, 0.0))
        return _ColdReading(reading, self._unknown)


@final
class _ColdReading:
    """What follows from reading, and zero for items that are not known."""

    def __init__(self, reading: Reading, unknown: Tensor) -> None:
        self._reading, self._unknown = reading, unknown

    def losses(self) -> Tensor:
        """[users, candidates]."""
        return self._reading.losses().masked_fill(self._unknown, 0.0)

    def influences(self, damping: float) -> Tensor:
        """[users, candidates]."""
        return self._reading.influences(damping).masked_fill(self._unknown, 0.0)
