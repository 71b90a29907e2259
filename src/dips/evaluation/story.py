"""Explain the sketches of one user: every prediction, its sketch, and the scores of every refresh.

Rolls out one history under a trained policy and records all decisions. Knows nothing about how the
story is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dips.credit.adjoint import entry_gradient, loss_and_adjoint
from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.evaluation.metrics import CUTOFF
from dips.evaluation.progressive import predict
from dips.model.trained_model import TrainedModel
from dips.policy.base import Policy
from dips.recommender.losses import BinaryCrossEntropy
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals
from dips.stream.users import EventColumns, make_stream


@dataclass(frozen=True)
class SketchEntry:
    """An entry of the sketch that a prediction was made from."""

    position: int
    """Position in the user's history, from 0."""
    item: str
    entry_gradient: float | None
    """Gradient of the prediction's loss with respect to the entry's weight.

    Below 0 the entry helped. None for recommenders without an inner loop.
    """


@dataclass(frozen=True)
class PredictionStep:
    """One prediction: an interaction, predicted from the sketch before it."""

    t: int
    """Number of earlier interactions."""
    item: str
    rating: float | None
    estimate: float | None
    """Predicted rating, or probability of a like; None where items are predicted."""
    rank: float | None
    """Rank of the item among all items; None where ratings are predicted."""
    error: float | None
    kept: tuple[SketchEntry, ...]

    @property
    def hit(self) -> bool:
        """Whether the item is among the top 20."""
        return self.rank is not None and self.rank <= CUTOFF


@dataclass(frozen=True)
class ScoredCandidate:
    """A candidate of a refresh, with its score."""

    position: int
    item: str
    score: float
    stays: bool


@dataclass(frozen=True)
class Refresh:
    """One decision of the policy."""

    seen: int
    """Number of interactions up to the refresh, the new ones included."""
    candidates: tuple[ScoredCandidate, ...]

    @property
    def dropped(self) -> tuple[ScoredCandidate, ...]:
        """Return the dropped candidates."""
        return tuple(candidate for candidate in self.candidates if not candidate.stays)


@dataclass(frozen=True, kw_only=True)
class Story:
    """Predictions and refreshes of one user, in order of time."""

    user: str
    data: str
    part: str
    """train, valid or test; empty if the user is not in the run's split."""
    policy: str
    run_policy: str
    """Policy that the run was asked for; differs from `policy` if a baseline was kept."""
    size: int
    periods: tuple[int, ...]
    explicit: bool
    items: int
    length: int
    """Number of the user's interactions, with those that are not shown."""
    titles: dict[str, str]
    """Titles by item id, where the data has them."""
    steps: tuple[PredictionStep, ...]
    refreshes: tuple[Refresh, ...]

    def item_name(self, item: str) -> str:
        """Return the title of an item, or its id."""
        return self.titles.get(item, item)

    def last(self, steps: int) -> Story:
        """Return the story of the newest predictions only; 0 keeps all."""
        shown = self.steps[-steps:]
        since = shown[0].t if shown else 0
        later = tuple(refresh for refresh in self.refreshes if refresh.seen >= since)
        return replace(self, steps=shown, refreshes=later)

    @property
    def has_gradients(self) -> bool:
        """Whether entry gradients are known."""
        return any(kept.entry_gradient is not None for step in self.steps for kept in step.kept)

    def kept_items(self) -> list[str]:
        """Return the items of all sketches, in order of first being kept."""
        return list(dict.fromkeys(kept.item for step in self.steps for kept in step.kept))

    def refresh_before(self, t: int) -> Refresh | None:
        """Return the refresh right before a prediction; None if there was none."""
        return next((refresh for refresh in self.refreshes if refresh.seen == t), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def item_gradient(step: PredictionStep, item: str) -> tuple[bool, float]:
    """Return whether a step's sketch holds an item, and the sum of its entry gradients."""
    entries = [kept for kept in step.kept if kept.item == item]
    return bool(entries), sum(kept.entry_gradient or 0.0 for kept in entries)


class _RecordingPolicy(Policy):
    """Records the candidates and scores of another policy; the decisions are those of the other."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.required_signals = policy.required_signals
        self.is_random = policy.is_random
        self.recorded: list[tuple[Candidates, Tensor]] = []

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return and record the scores of the other policy, [users, candidates]."""
        scores = self.policy.score(candidates, signals)
        self.recorded.append((candidates, scores))
        return scores


@torch.no_grad()
def explain_user(
    trained: TrainedModel,
    data: Interactions,
    user: int,
    *,
    part: str = "",
    run_policy: str = "",
    title: Callable[[str], str | None] = lambda item: None,
) -> Story:
    """Return the story of one user.

    Args:
        trained: The model to explain.
        data: Data with the model's item indices.
        user: Index of the user in `data`.
        part: Part of the run's split that holds the user.
        run_policy: Policy that the run was asked for; by default the model's.
        title: From an item's original id to its title.

    Raises:
        ConfigError: If the policy keeps everything: there is no decision to explain.
    """
    if trained.policy.keeps_all:
        raise ConfigError("the policy 'all' keeps everything: it has no sketches to explain")
    history = _one_user(data, user)
    stack = StackedRecommenders.of([trained.recommender], "cpu")
    stream = make_stream([history], EventColumns.of(history, side_information=trained.side))
    recording = _RecordingPolicy(trained.policy)
    trace = rollout(
        stream,
        recording,
        size=trained.size,
        schedule=trained.schedule,
        keys=stream.keys([trained.seed]),
        recommenders=stack,
        selector=trained.selector,
    )
    assert isinstance(trace, StoredTrace)
    ids = [data.item_ids[int(item)] for item in history.item]
    steps = tuple(_steps(trained, stack, trace, ids))
    titles = {item: name for item in dict.fromkeys(ids) if (name := title(item))}
    return Story(
        user=data.user_id(user),
        data=data.name,
        part=part,
        policy=trained.policy_spec.name,
        run_policy=run_policy or trained.policy_spec.name,
        size=trained.size,
        periods=trained.periods,
        explicit=trained.explicit,
        items=len(trained.item_ids),
        length=len(ids),
        titles=titles,
        steps=steps,
        refreshes=tuple(_refreshes(trained, recording, ids)),
    )


def _one_user(data: Interactions, user: int) -> Interactions:
    """Return a table of one user's events."""
    events = data.events(user)
    rows = np.arange(events.start, events.stop)
    return replace(
        data.select([user]),
        item=data.item[events],
        rating=None if data.rating is None else data.rating[events],
        time=None if data.time is None else data.time[events],
        side={name: column.take(rows) for name, column in data.side.items()},
        starts=np.zeros(1, np.int64),
        warmup=np.zeros(1, np.int64),
    )


def _steps(
    trained: TrainedModel, stack: StackedRecommenders, trace: StoredTrace, ids: list[str]
) -> Iterator[PredictionStep]:
    """Yield every prediction with the sketch that it was made from."""
    made = predict(stack, trace, 0)
    entry_gradients = _entry_gradients(trained, trace)
    rated = trained.explicit and trace.columns.rating.tolist()
    output, errors = _predicted_and_errors(trained, made.output, made.target)
    steps = zip(output, trace.kept, entry_gradients.tolist(), strict=True)
    for t, (value, kept, gradients) in enumerate(steps):
        positions = [int(position) for position in kept if position >= 0]
        yield PredictionStep(
            t=t,
            item=ids[t],
            rating=rated[t] if rated else None,
            estimate=value if trained.explicit else None,
            rank=None if trained.explicit else value,
            error=errors[t] if trained.explicit else None,
            kept=tuple(
                SketchEntry(position, ids[position], None if np.isnan(gradient) else gradient)
                # Kept entries come first: the gradients of empty slots are left over.
                for position, gradient in zip(positions, gradients, strict=False)
            ),
        )


def _predicted_and_errors(
    trained: TrainedModel, output: Tensor, target: Tensor
) -> tuple[list[float], list[float]]:
    """Return predictions and absolute errors, as the metrics define them."""
    if not trained.explicit:
        return output.tolist(), []
    loss = trained.recommender.loss
    if isinstance(loss, BinaryCrossEntropy):
        return output.tolist(), (output - loss.liked(target)).abs().tolist()
    clamped = output.clamp(trained.spec.low, trained.spec.high)
    return clamped.tolist(), (clamped - target).abs().tolist()


def _entry_gradients(trained: TrainedModel, trace: StoredTrace) -> Tensor:
    """Return the entry gradients of each prediction, [steps, size]; NaN where undefined.

    Squared errors are in the squared unit of the data.
    """
    rows = torch.arange(len(trace.event))
    evidence = trace.evidence(rows)
    nothing = torch.full_like(evidence.weight, torch.nan)
    columns = trace.columns
    target = columns.token[trace.event], columns.rating[trace.event]
    seen = trace.seen_items(rows, filtered=trained.recommender.masks_seen)
    _, adjoint = loss_and_adjoint(trained.recommender, evidence, *target, seen)
    found = entry_gradient(trained.recommender, adjoint, evidence)
    found = found * trained.spec.rating_spread**2
    return torch.where(evidence.weight > 0, found, nothing)


def _refreshes(
    trained: TrainedModel, recording: _RecordingPolicy, ids: list[str]
) -> Iterator[Refresh]:
    """Yield every refresh; the decision is repeated from the recorded scores."""
    for candidates, scores in recording.recorded:
        chosen = trained.selector.choose(scores, candidates, trained.size)[0].tolist()
        places, values = candidates.position[0].tolist(), scores[0].tolist()
        yield Refresh(
            int(candidates.seen[0]),
            tuple(
                ScoredCandidate(place, ids[place], value, slot in chosen)
                for slot, (place, value) in enumerate(zip(places, values, strict=True))
                if place >= 0
            ),
        )
