"""Handle unknown items: items of events that the model was not trained on (cold items).

They are legal, and are handled in the same way by every policy and recommender:

- The recommender knows nothing of such an item: embedding, loss and residual are zero.
- Its predicted score is the lowest one of the user's other candidates.
- It does not change the user vector.
- A policy with parameters per item (the paper's network) uses the mean over all known items.
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


def model_item_numbers(codes: Tensor, item_index: Tensor, items: int) -> tuple[Tensor, Tensor]:
    """Convert codes of the store to item numbers of the model.

    Args:
        codes: Item codes of the store, [users, n].
        item_index: Model item of every code; -1 for unknown items, [codes].
        items: Number of items that the model knows.

    Returns:
        Item numbers, [users, n]; and which of them are unknown, [users, n]. Different unknown items
        of a user get different numbers from `items` on; repeats get the same one.
    """
    known = item_index[codes]
    unknown = known < 0
    if not bool(unknown.any()):
        return known, unknown
    first = (codes[:, :, None] == codes[:, None, :]).int().argmax(2)
    return torch.where(unknown, items + first, known), unknown


def extend_item_tables(trained: TrainedModel, rows: int) -> Policy:
    """Return the model's policy with parameters for further, unknown items.

    Args:
        trained: The trained model.
        rows: Number of unknown items to add; their parameters are the mean over known items.
    """
    policy, spec = trained.policy, trained.policy_spec
    if not isinstance(policy, nn.Module):
        return policy
    wider = build_policy(replace(spec, items=spec.items + rows))
    assert isinstance(wider, nn.Module)
    state = {}
    for name, value in wider.state_dict().items():
        known = policy.state_dict()[name]
        state[name] = known if known.shape == value.shape else _extend(known, value, spec.items)
    wider.load_state_dict(state)
    wider.eval().requires_grad_(False)
    return wider


def _extend(known: Tensor, wider: Tensor, items: int) -> Tensor:
    """Return a table with mean rows appended; new rows of integer codes keep their first value."""
    extended = wider.clone()
    extended[: len(known)] = known
    if known.is_floating_point():
        block = len(known) // items  # some tables have several rows per item
        mean = known.view(items, block, -1).double().mean(0)
        extended[len(known) :] = mean.repeat(len(extended) // block - items, 1).view_as(
            extended[len(known) :]
        )
    return extended


def mask_unknown(entries: Candidates, unknown: Tensor) -> Candidates:
    """Return candidates with empty slots in place of unknown items, [users, candidates]."""
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
