"""Score every prediction of a walk: the sketch before an interaction predicts that interaction.

Knows nothing of how the sketch or the recommender came to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dips.evaluation.metrics import (
    LOWER_IS_BETTER,
    area_under_curve,
    headline,
    pooled,
    ranking_terms,
    ranks,
    rating_terms,
)
from dips.numerics.chunks import rows_at_once
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.recommender.base import Evidence, Recommender
from dips.recommender.compiled_softmax import is_looped, scores
from dips.recommender.losses import BinaryCrossEntropy, CategoricalCrossEntropy
from dips.recommender.sequential import Sequential
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import FullHistoryTrace, Trace

CHUNK = 1 << 26
"""Most numbers in the widest intermediate of a prediction."""
LOOPED = 1 << 22
"""Most scores at once where compiled loops make them: enough rows for all threads."""


@dataclass(eq=False)
class Scores:
    """One run's evaluation: pooled metrics, and each user's share for paired tests."""

    metrics: dict[str, float]
    count: Tensor  # [users] predictions per user
    sums: dict[str, Tensor] = field(default_factory=dict)  # [users] each

    @property
    def headline(self) -> float:
        """The deciding metric, as a number to minimise."""
        name = headline(self.metrics)
        return self.metrics[name] if name in LOWER_IS_BETTER else -self.metrics[name]


@dataclass(eq=False)
class Predictions:
    """Every prediction of one run, in the order of the trace."""

    output: Tensor  # [rows] estimated rating, or the rank of the target
    target: Tensor  # [rows] rating, or item


def evaluate(
    stack: StackedRecommenders,
    trace: Trace,
    *,
    low: float = 0.0,
    high: float = 0.0,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> list[Scores]:
    """Metrics of every run of a walk; `low` and `high` are the range of ratings.

    Where a process_group has walked, each process its own users, all of them count.
    """
    return [_score(stack, trace, run, low, high, process_group) for run in range(trace.runs)]


def predict(stack: StackedRecommenders, trace: Trace, run: int) -> Predictions:
    """Predict every interaction of one run from the sketch before it."""
    model = stack.template
    columns, outputs, targets = trace.columns, [], []
    for rows in _pieces(trace, run, model):
        event = trace.event[rows]
        item, rating = columns.token[event], columns.rating[event]
        if isinstance(model, Sequential) and isinstance(trace, FullHistoryTrace):
            outputs.append(_call(stack, run, _predict_after, *trace.histories(rows), item))
        else:
            outputs.append(_call(stack, run, _predict, *trace.evidence(rows), item))
        targets.append(item if model.loss.listwise else rating)
    return Predictions(torch.cat(outputs), torch.cat(targets))


def _score(
    stack: StackedRecommenders,
    trace: Trace,
    run: int,
    low: float,
    high: float,
    process_group: ProcessGroup,
) -> Scores:
    model, loss = stack.template, stack.template.loss
    made = predict(stack, trace, run)
    extra: dict[str, float] = {}
    if loss.listwise:
        terms = ranking_terms(made.output)
    elif isinstance(loss, BinaryCrossEntropy):
        liked = loss.liked(made.target)
        chance = made.output.double().clamp(1e-12, 1 - 1e-12)
        cross = -(liked * chance.log() + (1 - liked) * (1 - chance).log())
        terms = {"squared_error": (chance - liked) ** 2, "logloss": cross}
        scores, good = process_group.join(made.output), process_group.join(liked)
        if 0 < int(good.sum()) < len(good):  # else there is nothing to tell apart
            extra["auc"] = area_under_curve(scores, good)
    else:
        terms = rating_terms(made.output, made.target, low, high)
    if isinstance(loss, CategoricalCrossEntropy):
        terms["logloss"] = _log_loss(stack, trace, run, model)
    return _pool(trace, run, terms, extra, process_group)


def evaluate_scores(
    score: Callable[[Evidence], Tensor], trace: Trace, run: int, breadth: int
) -> Scores:
    """Ranking metrics of any function from sketches to scores of all items, [rows, items].

    `breadth`: numbers in the widest intermediate for one row, for pieces that fit.
    """
    parts = []
    for rows in torch.split(_rows(trace, run), max(1, CHUNK // breadth)):
        target = trace.columns.item[trace.event[rows]]
        parts.append(ranks(score(trace.evidence(rows)), target))
    return _pool(trace, run, ranking_terms(torch.cat(parts)), {}, SINGLE_PROCESS)


def _pool(
    trace: Trace,
    run: int,
    terms: dict[str, Tensor],
    extra: dict[str, float],
    process_group: ProcessGroup,
) -> Scores:
    """Metrics over all predictions, and sums for each user: every user walks in one process."""
    user = trace.user[trace.run_rows[run] : trace.run_rows[run + 1]]
    users = int(process_group.join(user.max()[None]).max()) + 1
    count = process_group.sum(_by_user(user, torch.ones_like(user, dtype=torch.float64), users))
    sums = {name: process_group.sum(_by_user(user, term, users)) for name, term in terms.items()}
    totals = {name: math.fsum(total.tolist()) for name, total in sums.items()}  # in any order
    return Scores({**pooled(totals, float(count.sum())), **extra}, count, sums)


def _by_user(user: Tensor, term: Tensor, users: int) -> Tensor:
    """[users] sums of a term, on the CPU and in one order whatever the device."""
    total = torch.zeros(users, dtype=torch.float64)
    return total.index_add_(0, user.cpu(), term.double().cpu())


def _predict(
    model: Recommender, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor, age: Tensor,
    repeats: Tensor, target: Tensor,
) -> Tensor:  # fmt: skip
    evidence = Evidence(item, rating, weight, slots, age, repeats)
    if is_looped(model):
        return ranks(model.offered(scores(model, evidence), item, weight), target)
    user = model.read(evidence)
    if model.loss.listwise:
        return ranks(model.offered(model.predict_all(user), item, weight), target)
    return model.loss.estimate(model.predict(user, target[:, None])[:, 0])


def _predict_after(
    model: Recommender, item: Tensor, owner: Tensor, step: Tensor, target: Tensor
) -> Tensor:
    """From whole histories, each read once."""
    assert isinstance(model, Sequential)
    scores = model.predict_all(model.after(item, owner, step))
    if model.filters_sketch:
        known = torch.arange(item.shape[1], device=step.device) < step[:, None]
        scores = model.offered(scores, item[owner], known)
    return ranks(scores, target)


def _log_loss(stack: StackedRecommenders, trace: Trace, run: int, model: Recommender) -> Tensor:
    def cross(
        model: Recommender, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor,
        age: Tensor, repeats: Tensor, target: Tensor, given: Tensor,
    ) -> Tensor:  # fmt: skip
        user = model.read(Evidence(item, rating, weight, slots, age, repeats))
        return model.losses(user, target[:, None], given[:, None])[:, 0]

    columns, parts = trace.columns, []
    for rows in _pieces(trace, run, model):
        event = trace.event[rows]
        target = (columns.token[event], columns.rating[event])
        parts.append(_call(stack, run, cross, *trace.evidence(rows), *target))
    return torch.cat(parts).double()


def _call(
    stack: StackedRecommenders, run: int, function: Callable[..., Tensor], *fields: Tensor
) -> Tensor:
    with torch.no_grad():
        alone = stack.select([run])
        result: Tensor = alone.call(function, *(item[None] for item in fields))[0]
        return result


def _pieces(trace: Trace, run: int, model: Recommender) -> Iterator[Tensor]:
    """Rows of a run in pieces whose intermediates are of bounded size."""
    rows, dim = _rows(trace, run), model.user_prior.shape[0]
    if model.loss.listwise:
        reading = 0 if isinstance(trace, FullHistoryTrace) else 4 * dim * trace.width
        breadth = max(model.breadth, model.items, reading)
        fits = max(1, LOOPED // model.items)
        at_once = fits if is_looped(model) else rows_at_once(CHUNK, breadth, rows.device)
        if isinstance(trace, FullHistoryTrace):  # what was read is as wide as the history
            at_once = min(at_once, max(1, CHUNK // (8 * trace.width)))
        yield from torch.split(rows, at_once)
        return
    yield from torch.split(rows, max(64, CHUNK // (8 * dim * trace.width)))


def _rows(trace: Trace, run: int) -> Tensor:
    """All rows of a run."""
    first, last = trace.run_rows[run], trace.run_rows[run + 1]
    return torch.arange(first, last, device=trace.event.device)
