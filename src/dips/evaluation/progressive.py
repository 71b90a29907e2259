"""Progressive evaluation: predict every interaction from the sketch before it, then score it.

Each row of a trace holds the sketch of x_1 ... x_t and the event x_{t+1}. The prediction reads the
sketch only; the event is used for scoring. Ties in ranks are resolved in `metrics.ranks`. Knows
nothing about how the sketches or the recommender were made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dips.evaluation.metrics import (
    LOWER_IS_BETTER,
    area_under_curve,
    pool_metrics,
    primary_metric,
    ranking_terms,
    ranks,
    rating_terms,
)
from dips.numerics.chunks import rows_per_chunk, split_into_chunks
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.recommender.base import Evidence, Recommender, mask_items
from dips.recommender.compiled_softmax import has_compiled_softmax, scores
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import BinaryCrossEntropy, CategoricalCrossEntropy
from dips.recommender.sequential import Sequential
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import FullHistoryTrace, Trace

CHUNK = 1 << 26
"""Maximum number of elements in the widest intermediate tensor of a prediction."""
COMPILED_SCORES = 1 << 22
"""Maximum number of scores per call of the compiled softmax: enough rows for all threads."""


@dataclass(eq=False)
class Scores:
    """Evaluation of one run: pooled metrics, and sums by user for paired tests."""

    metrics: dict[str, float]
    count: Tensor
    """Predictions per user, [users]."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """By metric term: sums over a user's predictions, [users]."""

    @property
    def objective(self) -> float:
        """The primary metric as a number to minimise."""
        name = primary_metric(self.metrics)
        return self.metrics[name] if name in LOWER_IS_BETTER else -self.metrics[name]


@dataclass(eq=False)
class Predictions:
    """Predictions of one run, in the order of the trace."""

    output: Tensor
    """Predicted rating, or rank of the target among all items, [rows]."""
    target: Tensor
    """True rating, or item, [rows]."""


def evaluate(
    stack: StackedRecommenders,
    trace: Trace,
    *,
    low: float | Sequence[float] = 0.0,
    high: float | Sequence[float] = 0.0,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> list[Scores]:
    """Score every prediction of a rollout and return the scores of each run.

    Args:
        stack: Recommenders of the runs.
        trace: Sketches and events of all runs.
        low: Lowest rating, of all runs or of each.
        high: Highest rating, of all runs or of each.
        process_group: Processes with a part of the users each; their sums are added.
    """
    lows, highs = _of_each_run(low, trace.runs), _of_each_run(high, trace.runs)
    return [
        _score(stack, trace, run, lows[run], highs[run], process_group) for run in range(trace.runs)
    ]


def _of_each_run(value: float | Sequence[float], runs: int) -> Sequence[float]:
    return value if isinstance(value, Sequence) else [value] * runs


def predict(stack: StackedRecommenders, trace: Trace, run: int) -> Predictions:
    """Predict every interaction of one run from the sketch before it.

    Args:
        stack: Recommenders of the runs.
        trace: Sketches and events.
        run: Index of the run.
    """
    model = stack.template
    columns, outputs, targets = trace.columns, [], []
    for rows in _chunks(trace, run, model):
        event = trace.event[rows]
        item, rating = columns.token[event], columns.rating[event]
        if isinstance(model, Sequential) and isinstance(trace, FullHistoryTrace):
            outputs.append(_call(stack, run, _predict_after, *trace.histories(rows), item))
        else:
            seen = trace.seen_items(rows, filtered=model.masks_seen)
            outputs.append(_call(stack, run, _predict, *trace.evidence(rows), item, seen))
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
    """Return the scores of one run: predict, compare with the revealed interactions, pool."""
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
        scores, good = process_group.all_gather(made.output), process_group.all_gather(liked)
        if 0 < int(good.sum()) < len(good):  # AUC needs both classes
            extra["auc"] = area_under_curve(scores, good)
    else:
        terms = rating_terms(made.output, made.target, low, high)
    if isinstance(loss, CategoricalCrossEntropy):
        terms["logloss"] = _log_loss(stack, trace, run, model)
    return _pool(trace, run, terms, extra, process_group)


def evaluate_scores(
    score: Callable[[Evidence], Tensor], trace: Trace, run: int, breadth: int
) -> Scores:
    """Return the ranking metrics of any scoring function on the sketches of a trace.

    Args:
        score: From evidence to scores of all items, [rows, items].
        trace: Sketches and events.
        run: Index of the run.
        breadth: Elements in the widest intermediate tensor of one row.
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
    """Return metrics over all predictions, and sums by user; a user belongs to one process."""
    user = trace.user[trace.run_rows[run] : trace.run_rows[run + 1]]
    users = int(process_group.all_gather(user.max()[None]).max()) + 1
    count = process_group.all_reduce(
        _by_user(user, torch.ones_like(user, dtype=torch.float64), users)
    )
    sums = {
        name: process_group.all_reduce(_by_user(user, term, users)) for name, term in terms.items()
    }
    totals = {
        name: math.fsum(total.tolist()) for name, total in sums.items()
    }  # fsum: independent of order
    return Scores({**pool_metrics(totals, float(count.sum())), **extra}, count, sums)


def _by_user(user: Tensor, term: Tensor, users: int) -> Tensor:
    """Return the sums of a term by user, [users], on the CPU in a fixed order."""
    total = torch.zeros(users, dtype=torch.float64)
    return total.index_add_(0, user.cpu(), term.double().cpu())


def _predict(
    model: Recommender, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor, age: Tensor,
    repeats: Tensor, target: Tensor, seen: Tensor,
) -> Tensor:  # fmt: skip
    """Return the rank of each target or its predicted rating, from the sketch before, [rows]."""
    evidence = Evidence(item, rating, weight, slots, age, repeats)  # sketch of x_1 ... x_t
    if not model.loss.listwise:
        return model.estimate(model.predict(model.read(evidence), target[:, None])[:, 0])
    if has_compiled_softmax(model):  # compiled
        return _ranks(model, scores(model, evidence), item, weight, target, seen)
    chunks = split_into_chunks((model.read(evidence), item, weight, target, seen), model.items)
    return torch.cat([_ranks(model, model.predict_all(user), *rest) for user, *rest in chunks])


def _ranks(
    model: Recommender, scores: Tensor, item: Tensor, weight: Tensor, target: Tensor, seen: Tensor
) -> Tensor:
    """Return the rank of each target among the items that are not filtered, [rows].

    `seen` [rows, n] are the items of x_1 ... x_t, if the model filters them; -1 pads.
    """
    if model.masks_seen:
        others = (seen >= 0) & (seen != target[:, None])  # the target is never filtered
        allowed = mask_items(scores, seen.clamp_min(0), others)
    else:
        allowed = model.filtered_scores(scores, item, weight)
    return ranks(allowed, target)  # only now is x_{t+1} revealed


def _predict_after(
    model: Recommender, item: Tensor, owner: Tensor, step: Tensor, target: Tensor
) -> Tensor:
    """Return the rank of each target, predicted from the full history before it, [rows]."""
    assert isinstance(model, Sequential)
    scores = model.predict_all(model.states_after(item, owner, step))
    if not (model.masks_sketch or model.masks_seen):
        return ranks(scores, target)
    known = torch.arange(item.shape[1], device=step.device) < step[:, None]
    history = item[owner]
    return _ranks(model, scores, history, known, target, torch.where(known, history, -1))


def _log_loss(stack: StackedRecommenders, trace: Trace, run: int, model: Recommender) -> Tensor:
    """Return the cross entropy of each prediction, [rows]."""

    def cross(
        model: Recommender, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor,
        age: Tensor, repeats: Tensor, target: Tensor, given: Tensor,
    ) -> Tensor:  # fmt: skip
        user = model.read(Evidence(item, rating, weight, slots, age, repeats))
        return model.losses(user, target[:, None], given[:, None])[:, 0]

    columns, parts = trace.columns, []
    for rows in _chunks(trace, run, model):
        event = trace.event[rows]
        target = (columns.token[event], columns.rating[event])
        parts.append(_call(stack, run, cross, *trace.evidence(rows), *target))
    return torch.cat(parts).double()


def _call(
    stack: StackedRecommenders, run: int, function: Callable[..., Tensor], *fields: Tensor
) -> Tensor:
    """Call a function of one run's recommender, without gradients."""
    with torch.no_grad():
        single = stack.select([run])
        result: Tensor = single.call(function, *(item[None] for item in fields))[0]
        return result


def _chunks(trace: Trace, run: int, model: Recommender) -> Iterator[Tensor]:
    """Yield the rows of a run in chunks whose intermediate tensors fit into memory."""
    rows, dim = _rows(trace, run), model.user_prior.shape[0]
    if model.loss.listwise:
        reading = 0 if isinstance(trace, FullHistoryTrace) else 4 * dim * trace.width
        breadth = max(model.elements_per_row, reading)
        if isinstance(trace, FullHistoryTrace):
            breadth = max(breadth, model.items)
        at_once = rows_per_chunk(CHUNK, breadth, rows.device)
        if isinstance(model, LinearisedDotProduct):  # the moments of all items are computed once
            at_once = max(1, CHUNK // max(breadth, 4 * dim * trace.width))
        if has_compiled_softmax(model):
            at_once = max(1, COMPILED_SCORES // model.items)
        if isinstance(trace, FullHistoryTrace):  # the tensors are as wide as the history
            at_once = min(at_once, max(1, CHUNK // (8 * trace.width)))
        if model.masks_seen:
            at_once = min(at_once, max(1, CHUNK // (8 * max(1, trace.longest))))
        yield from torch.split(rows, at_once)
        return
    yield from torch.split(rows, max(64, CHUNK // (8 * dim * trace.width)))


def _rows(trace: Trace, run: int) -> Tensor:
    """Return the rows of a run, [rows]."""
    first, last = trace.run_rows[run], trace.run_rows[run + 1]
    return torch.arange(first, last, device=trace.event.device)
