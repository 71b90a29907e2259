"""Items that a run never met: legal, and handled alike whatever the policy and the recommender.

The recommender knows nothing of such an item: its vector is zero, its loss and residual are zero,
it is expected no more than the least expected of the others, and it does not move the user's
vector. A policy that has a row per item (the paper's network) takes the average of all rows for it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from dips.model.trained_model import TrainedModel
from dips.policy.base import Policy
from dips.policy.registry import build_policy
from dips.sketch.records import Candidates
from dips.sketch.signals import Reading, Signals


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


def hide_unknown(signals: Signals, unknown: Tensor) -> Signals:
    """Return signals that are zero for unknown items, which the recommender cannot look up.

    Their predicted score is the lowest of the user's other candidates: a score of a softmax has no
    meaning by itself, so 0 could be anything.

    Args:
        signals: Signals about the candidates without the unknown items.
        unknown: Which candidates are unknown items, [users, candidates].
    """

    def predicted_score() -> Tensor:
        found = signals.predicted_score
        least = found.masked_fill(unknown, torch.inf).amin(1, keepdim=True)
        return torch.where(unknown, least.where(least.isfinite(), 0.0), found)

    def read(weights: Tensor) -> Reading:
        reading = signals.read(weights.masked_fill(unknown, 0.0))
        return Reading(
            losses=lambda: reading.losses().masked_fill(unknown, 0.0),
            influences=lambda damping: reading.influences(damping).masked_fill(unknown, 0.0),
        )

    return Signals(
        {
            "loss": lambda: signals.loss.masked_fill(unknown, 0.0),
            "residual": lambda: signals.residual.masked_fill(unknown, 0.0),
            "predicted_score": predicted_score,
            "embedding": lambda: signals.embedding.masked_fill(unknown[..., None], 0.0),
        },
        read,
    )
