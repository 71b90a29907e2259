"""How much is left to gain: a hindsight oracle that sees half of the future, scored on the rest.

A user's interactions are numbered 1, 2, 3, ... At each refresh the oracle looks at the odd-numbered
ones among the next few, and only even-numbered ones are scored: whatever the time of a choice, no
outcome that is scored was seen by any choice before it was revealed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from dips.evaluation.crossing import read, walk
from dips.evaluation.metrics import LOWER_IS_BETTER
from dips.evaluation.progressive import Scores
from dips.evaluation.transfer import SourcePolicy
from dips.evaluation.verdict import compare_scores
from dips.model.trained_model import TrainedModel
from dips.numerics.chunks import rows_at_once
from dips.numerics.exact import SCORE_BITS, quantize
from dips.policy.base import Policy, Signals
from dips.policy.registry import make_policy
from dips.recommender.base import Evidence, Recommender
from dips.recommender.signals import as_evidence, rounding
from dips.recommender.sketch_filter import outcomes
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates
from dips.stream.users import Stream

AHEAD = 10
"""How far the oracle sees, in interactions."""
CHUNK = 1 << 24
"""Most numbers in the widest intermediate of a reading."""


@final
class Oracle(Policy):
    """Drops what the odd-numbered ones of the next interactions miss least, one at a time.

    It knows the future, so it belongs to one stream: the candidates' keys are the users' places.
    """

    def __init__(self, recommender: Recommender, stream: Stream, size: int, ahead: int = AHEAD):
        self._stack = StackedRecommenders.of([recommender], stream.start.device).quantized()
        self._stream, self._size, self._ahead = stream, size, ahead

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """1 for what stays, 0 for what goes; of equals the older goes."""
        del signals
        future = self._future(candidates)
        weight = candidates.present.double()
        for _ in range(weight.shape[1] - self._size):
            missed = self._missed(candidates, weight, future).masked_fill(weight == 0, torch.inf)
            order = quantize(missed, SCORE_BITS).sort(dim=1, stable=True).indices  # oldest first
            weight = weight.scatter(1, order[:, :1], 0.0)
        return weight

    def _future(self, candidates: Candidates) -> tuple[Tensor, Tensor, Tensor]:
        """Token, rating and weight [users, n] of the odd-numbered ones among the next."""
        seen, columns = candidates.seen[:, None], self._stream.columns
        place = seen + seen % 2 + torch.arange(0, self._ahead, 2, device=seen.device)  # from 0
        start = self._stream.start[0, candidates.key][:, None]
        length = self._stream.length[0, candidates.key][:, None]
        there = (place < length) & (place < seen + self._ahead)
        event = torch.where(there, start + place, 0)
        return columns.token[event], columns.rating[event].double(), there.double()

    def _missed(
        self, candidates: Candidates, weight: Tensor, future: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """[users, candidates] the future's loss when a candidate is left out of the sketch."""
        users, width = weight.shape
        without = weight[:, None] * (1 - torch.eye(width, dtype=weight.dtype, device=weight.device))
        sketches = as_evidence(candidates.entries, weight, candidates.seen)
        fields = [
            _each(sketches.item, width),
            _each(sketches.rating, width),
            without.flatten(0, 1),
            (without > 0).sum(2).flatten(),
            _each(sketches.age, width),
            _each(sketches.repeats, width),
            *(_each(field, width) for field in future),
        ]
        model = self._stack.template
        breadth = max(model.breadth, 4 * width * len(model.user_prior))
        piece = rows_at_once(CHUNK, breadth, weight.device)
        parts = [
            self._stack.call(_loss, *(field[None, low : low + piece] for field in fields))[0]
            for low in range(0, users * width, piece)
        ]
        return torch.cat(parts).view(users, width)


def _each(field: Tensor, times: int) -> Tensor:
    """Every row so many times, one after the other."""
    return field.repeat_interleave(times, 0)


def _loss(
    model: Recommender, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor, age: Tensor,
    repeats: Tensor, token: Tensor, outcome: Tensor, counts: Tensor,
) -> Tensor:  # fmt: skip
    """[rows] what a sketch loses on the interactions that count, read once: it does not age."""
    past = Evidence(item, rating, weight, slots, age, repeats)
    losses = outcomes(model, model.read(past, rounding), past, token, outcome)
    return (losses * counts).sum(1)


def foresee(reader: TrainedModel, stream: Stream, ahead: int = AHEAD) -> StoredTrace:
    """The sketches of the oracle that a bundle's recommender makes possible, at its size."""
    who = torch.arange(stream.start.shape[1], device=stream.start.device)[None]
    oracle = Oracle(reader.recommender, stream, reader.size, ahead)
    trace = rollout(stream, oracle, size=reader.size, schedule=reader.schedule, keys=who)
    assert isinstance(trace, StoredTrace)
    return trace


def numbered(trace: StoredTrace, *, even: bool) -> StoredTrace:
    """The predictions of a run's even-numbered interactions, or of the odd-numbered ones."""
    rows = torch.nonzero(trace.step % 2 == int(even)).flatten()  # step 0 is number 1
    return replace(
        trace,
        event=trace.event[rows],
        user=trace.user[rows],
        step=trace.step[rows],
        run_rows=[0, len(rows)],
        kept=trace.kept[rows],
        repeats=trace.repeats[rows],
        scores=None,
        asked=None,
    )


def room(
    reader: TrainedModel, choosers: Mapping[str, SourcePolicy], stream: Stream, ahead: int = AHEAD
) -> dict[str, Scores]:
    """Even-numbered predictions of one recommender from sketches of last-K, others, the oracle."""
    newest = SourcePolicy(
        name="last",
        policy=make_policy("last", size=reader.size),
        size=reader.size,
        schedule=reader.schedule,
    )
    traces = {
        name: walk(source_policy, stream)
        for name, source_policy in {**choosers, "last": newest}.items()
    }
    traces["oracle"] = foresee(reader, stream, ahead)
    return {name: read(reader, numbered(trace, even=True)) for name, trace in traces.items()}


def lead(oracle: Scores, last: Scores) -> dict[str, list[float]]:
    """By metric: the 95 % interval over users of how much better the oracle is than last-K."""
    found = {}
    for row in compare_scores(oracle, last):
        sign = -1 if row["metric"] in LOWER_IS_BETTER else 1
        found[row["metric"]] = sorted((sign * row["low"], sign * row["high"]))
    return found


def covered(metric: str, last: float, own: float, oracle: float) -> float | None:
    """The share of the way from last-K to the oracle; None where the oracle is no better.

    >>> covered("rmse", 0.93, 0.92, 0.91)  # doctest: +ELLIPSIS
    0.5...
    """
    way = last - oracle if metric in LOWER_IS_BETTER else oracle - last
    return (last - own) / (last - oracle) + 0.0 if way > 0 else None  # no minus zero
