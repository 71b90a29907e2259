"""The story of one user: what was kept when, what helped which prediction, why something went.

TrainingRollouts one history under a trained policy and notes everything on the way. Plain values come out;
how they look is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dips.credit.adjoint import effect_of, worth
from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.evaluation.metrics import CUTOFF
from dips.evaluation.progressive import predict
from dips.model.trained_model import TrainedModel
from dips.policy.base import Policy, Signals
from dips.recommender.losses import BinaryCrossEntropy
from dips.recommender.sequential import Sequential
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates
from dips.stream.users import Columns, make_stream


@dataclass(frozen=True)
class Kept:
    """An interaction in the sketch that a prediction was made from."""

    position: int
    item: str
    effect: float | None
    """Change of the prediction's loss with its weight: below 0 it helped. None: not known."""


@dataclass(frozen=True)
class Step:
    """One prediction: the sketch before an interaction predicts it."""

    t: int
    """How many interactions came before."""
    item: str
    rating: float | None
    estimate: float | None
    """The predicted rating, or the chance of a like; None where items are predicted."""
    rank: float | None
    """The item's place among all; None where ratings are predicted."""
    error: float | None
    kept: tuple[Kept, ...]

    @property
    def hit(self) -> bool:
        """Whether the item was among the first 20."""
        return self.rank is not None and self.rank <= CUTOFF


@dataclass(frozen=True)
class Candidate:
    """An interaction that a refresh could keep."""

    position: int
    item: str
    score: float
    stays: bool


@dataclass(frozen=True)
class Refresh:
    """One choice of what to keep; made after so many interactions."""

    seen: int
    candidates: tuple[Candidate, ...]

    @property
    def dropped(self) -> tuple[Candidate, ...]:
        """What had to go."""
        return tuple(candidate for candidate in self.candidates if not candidate.stays)


@dataclass(frozen=True, kw_only=True)
class Story:
    """Everything about one user, in order of time."""

    user: str
    data: str
    part: str
    """train, valid or test; empty where the user is none of the run's."""
    policy: str
    of: str
    """The policy that the run is of: where it is another one, a rival of it chose."""
    size: int
    periods: tuple[int, ...]
    explicit: bool
    items: int
    length: int
    """How many interactions the user has, also those that are not shown."""
    titles: dict[str, str]
    """Titles of the items in here, where the data has them."""
    steps: tuple[Step, ...]
    refreshes: tuple[Refresh, ...]

    def name(self, item: str) -> str:
        """The item's title, or its id."""
        return self.titles.get(item, item)

    def last(self, steps: int) -> Story:
        """The same with the newest predictions only; 0 for all of them."""
        shown = self.steps[-steps:]
        since = shown[0].t if shown else 0
        later = tuple(refresh for refresh in self.refreshes if refresh.seen >= since)
        return replace(self, steps=shown, refreshes=later)

    @property
    def is_known(self) -> bool:
        """Whether it is known what kept items did; a recommender without inner loop does not."""
        return any(kept.effect is not None for step in self.steps for kept in step.kept)

    def rows(self) -> list[str]:
        """The items that are kept at some step, in order of first being kept."""
        return list(dict.fromkeys(kept.item for step in self.steps for kept in step.kept))

    def refresh_before(self, t: int) -> Refresh | None:
        """The refresh right before a prediction; None where the sketch stayed as it was."""
        return next((refresh for refresh in self.refreshes if refresh.seen == t), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def cell(step: Step, item: str) -> tuple[bool, float]:
    """Whether a step's sketch holds an item, and the effect of all its interactions in there."""
    mine = [kept for kept in step.kept if kept.item == item]
    return bool(mine), sum(kept.effect or 0.0 for kept in mine)


class _Listening(Policy):
    """A policy that notes what it is asked and what it answers; its sketches are the same."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.required_signals, self.is_random = (
            policy,
            policy.required_signals,
            policy.is_random,
        )
        self.heard: list[tuple[Candidates, Tensor]] = []

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Ask, and note."""
        scores = self.policy.score(candidates, signals)
        self.heard.append((candidates, scores))
        return scores


@torch.no_grad()
def tell(
    trained: TrainedModel,
    data: Interactions,
    user: int,
    *,
    part: str = "",
    of: str = "",
    title: Callable[[str], str | None] = lambda item: None,
) -> Story:
    """The story of one user of data that has the bundle's vocabulary.

    `title` gives an item's title by its original id; `of` names the policy that the run is of,
    where the bundle may hold a rival of it.
    """
    if trained.policy.keeps_all:
        raise ConfigError("the policy 'all' keeps everything: there is no story to tell")
    alone = _alone(data, user)
    stack = StackedRecommenders.of([trained.recommender], "cpu")
    stream = make_stream([alone], Columns.of(alone, sides=trained.sides))
    listening = _Listening(trained.policy)
    trace = rollout(
        stream,
        listening,
        size=trained.size,
        schedule=trained.schedule,
        keys=stream.keys([trained.seed]),
        recommenders=stack,
        selector=trained.selector,
    )
    assert isinstance(trace, StoredTrace)
    ids = [data.item_ids[int(item)] for item in alone.item]
    steps = tuple(_steps(trained, stack, trace, ids))
    titles = {item: name for item in dict.fromkeys(ids) if (name := title(item))}
    return Story(
        user=data.user_id(user),
        data=data.name,
        part=part,
        policy=trained.policy_spec.name,
        of=of or trained.policy_spec.name,
        size=trained.size,
        periods=trained.periods,
        explicit=trained.explicit,
        items=len(trained.item_ids),
        length=len(ids),
        titles=titles,
        steps=steps,
        refreshes=tuple(_refreshes(trained, listening, ids)),
    )


def _alone(data: Interactions, user: int) -> Interactions:
    """A table of this user's events only: the others need not be copied."""
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
) -> Iterator[Step]:
    """Every prediction, with what it was made from."""
    made = predict(stack, trace, 0)
    effects = _effects(trained, trace)
    rated = trained.explicit and trace.columns.rating.tolist()
    output, errors = _outcomes(trained, made.output, made.target)
    for t, (value, kept, worths) in enumerate(zip(output, trace.kept, effects, strict=True)):
        places = [int(place) for place in kept if place >= 0]
        shares = [None if np.isnan(effect) else effect for effect in worths.tolist()]
        yield Step(
            t=t,
            item=ids[t],
            rating=rated[t] if rated else None,
            estimate=value if trained.explicit else None,
            rank=None if trained.explicit else value,
            error=errors[t] if trained.explicit else None,
            kept=tuple(Kept(p, ids[p], share) for p, share in zip(places, shares, strict=False)),
        )


def _outcomes(
    trained: TrainedModel, output: Tensor, target: Tensor
) -> tuple[list[float], list[float]]:
    """What was predicted, and how far off: as the metrics have it."""
    if not trained.explicit:
        return output.tolist(), []
    loss = trained.recommender.loss
    if isinstance(loss, BinaryCrossEntropy):
        return output.tolist(), (output - loss.liked(target)).abs().tolist()
    clamped = output.clamp(trained.spec.low, trained.spec.high)
    return clamped.tolist(), (clamped - target).abs().tolist()


def _effects(trained: TrainedModel, trace: StoredTrace) -> Tensor:
    """[steps, size] effects of the kept interactions; NaN where there is none to know."""
    evidence = trace.evidence(torch.arange(len(trace.event)))
    nothing = torch.full_like(evidence.weight, torch.nan)
    if isinstance(trained.recommender, Sequential):  # it has no inner loop
        return nothing
    columns = trace.columns
    target = columns.token[trace.event], columns.rating[trace.event]
    _, effect = effect_of(trained.recommender, evidence, *target)
    past = (evidence.item, evidence.rating, evidence.age, evidence.repeats)
    found = worth(trained.recommender, effect, *past)
    return torch.where(evidence.weight > 0, found, nothing)


def _refreshes(trained: TrainedModel, listening: _Listening, ids: list[str]) -> Iterator[Refresh]:
    """Every choice, decided once more from the scores that were noted."""
    for candidates, scores in listening.heard:
        chosen = trained.selector.choose(scores, candidates, trained.size)[0].tolist()
        places, values = candidates.position[0].tolist(), scores[0].tolist()
        yield Refresh(
            int(candidates.seen[0]),
            tuple(
                Candidate(place, ids[place], value, slot in chosen)
                for slot, (place, value) in enumerate(zip(places, values, strict=True))
                if place >= 0
            ),
        )
