"""A hindsight oracle that sees half of the future, and scores on the other half.

A user's interactions are numbered 1, 2, 3, ... At each refresh the oracle sees the odd-numbered
interactions among the next few. Only even-numbered interactions are scored. No decision therefore
uses an interaction that is scored before it is revealed. The oracle is greedy and minimises the
training loss: it is no upper bound of a metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from dips.evaluation.crossing import score_sketches, source_sketches
from dips.evaluation.metrics import LOWER_IS_BETTER
from dips.evaluation.progressive import Scores
from dips.evaluation.settings import LOOKAHEAD
from dips.evaluation.transfer import SourcePolicy
from dips.evaluation.verdict import compare_scores
from dips.model.trained_model import TrainedModel
from dips.numerics.chunks import rows_per_chunk
from dips.numerics.fixed_point import SCORE_BITS, quantize
from dips.policy.base import Policy
from dips.policy.registry import make_policy
from dips.recommender.base import Evidence, Recommender
from dips.recommender.filtered_loss import prediction_losses
from dips.recommender.signals import as_evidence, rounding
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals
from dips.stream.users import Stream

CHUNK = 1 << 24
"""Maximum number of elements in the widest intermediate tensor."""


@final
class HindsightOracle(Policy):
    """Drops, one at a time, the candidate whose removal least increases the loss of the future.

    The future are the odd-numbered interactions among the next `ahead`. The oracle belongs to one
    stream of one run: `candidates.key` is the index of a user in it.
    """

    def __init__(self, recommender: Recommender, stream: Stream, size: int, ahead: int = LOOKAHEAD):
        self._stack = StackedRecommenders.of([recommender], stream.start.device).quantized()
        self._stream, self._size, self._ahead = stream, size, ahead

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return 1 for kept and 0 for dropped candidates, [users, candidates].

        Among candidates with equal loss the oldest is dropped.
        """
        del signals
        future = self._future(candidates)
        weight = candidates.present.double()
        for _ in range(weight.shape[1] - self._size):
            loss = self._loss_without(candidates, weight, future).masked_fill(
                weight == 0, torch.inf
            )
            order = quantize(loss, SCORE_BITS).sort(dim=1, stable=True).indices  # oldest first
            weight = weight.scatter(1, order[:, :1], 0.0)
        return weight

    def _future(self, candidates: Candidates) -> tuple[Tensor, Tensor, Tensor]:
        """Return token, rating and weight of the odd-numbered future interactions, [users, n]."""
        seen, columns = candidates.seen[:, None], self._stream.columns
        # Positions count from 0, so odd-numbered interactions are at even positions.
        position = seen + seen % 2 + torch.arange(0, self._ahead, 2, device=seen.device)
        start = self._stream.start[0, candidates.key][:, None]
        length = self._stream.length[0, candidates.key][:, None]
        exists = (position < length) & (position < seen + self._ahead)
        event = torch.where(exists, start + position, 0)
        return columns.token[event], columns.rating[event].double(), exists.double()

    def _loss_without(
        self, candidates: Candidates, weight: Tensor, future: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """Return the loss of the future without each candidate, [users, candidates]."""
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
        longest = int(candidates.seen.max()) if model.masks_seen else 0
        breadth = max(model.elements_per_row, 4 * width * len(model.user_prior), 8 * longest)
        piece = rows_per_chunk(CHUNK, breadth, weight.device)
        parts = []
        for low in range(0, users * width, piece):
            rows = torch.arange(low, min(low + piece, users * width), device=weight.device)
            seen = self._seen_items(candidates, rows // width, longest)
            chunk = (*(field[low : low + piece] for field in fields), seen)
            parts.append(self._stack.call(_loss, *(field[None] for field in chunk))[0])
        return torch.cat(parts).view(users, width)

    def _seen_items(self, candidates: Candidates, users: Tensor, longest: int) -> Tensor:
        """Return the items that users [rows] have met before the refresh, [rows, longest].

        -1 pads. What comes after the refresh is not filtered, though the oracle sees some of it.
        """
        place = torch.arange(longest, device=users.device)
        known = place < candidates.seen[users][:, None]
        first = self._stream.start[0, candidates.key[users]][:, None]
        item = self._stream.columns.item[torch.where(known, first + place, 0)].long()
        return torch.where(known, item, -1)


def _each(field: Tensor, times: int) -> Tensor:
    """Repeat every row, one copy after the other, [rows * times, ...]."""
    return field.repeat_interleave(times, 0)


def _loss(
    model: Recommender, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor, age: Tensor,
    repeats: Tensor, token: Tensor, target: Tensor, counts: Tensor, seen: Tensor,
) -> Tensor:  # fmt: skip
    """Return the summed loss of a sketch on the future, [rows]; ages are those at the refresh."""
    past = Evidence(item, rating, weight, slots, age, repeats)
    losses = prediction_losses(model, model.read(past, rounding), past, token, target, seen)
    return (losses * counts).sum(1)


def oracle_sketches(target: TrainedModel, stream: Stream, ahead: int = LOOKAHEAD) -> StoredTrace:
    """Return the oracle's sketches for a model's recommender, at its size and schedule."""
    keys = torch.arange(stream.start.shape[1], device=stream.start.device)[None]
    oracle = HindsightOracle(target.recommender, stream, target.size, ahead)
    trace = rollout(stream, oracle, size=target.size, schedule=target.schedule, keys=keys)
    assert isinstance(trace, StoredTrace)
    return trace


def select_parity(trace: StoredTrace, *, even: bool) -> StoredTrace:
    """Select the predictions of the even-numbered interactions of a run, or of the odd ones."""
    rows = torch.nonzero(trace.step % 2 == int(even)).flatten()  # step 0 predicts number 1
    return replace(
        trace,
        event=trace.event[rows],
        user=trace.user[rows],
        step=trace.step[rows],
        run_rows=[0, len(rows)],
        kept=trace.kept[rows],
        repeats=trace.repeats[rows],
        scores=None,
        inputs=None,
    )


def score_against_oracle(
    target: TrainedModel,
    policies: Mapping[str, SourcePolicy],
    stream: Stream,
    ahead: int = LOOKAHEAD,
) -> dict[str, Scores]:
    """Score one recommender with the sketches of given policies, of last-K and of the oracle.

    Args:
        target: The model whose recommender predicts.
        policies: Policies whose sketches are read, by name.
        stream: Users of one run.
        ahead: How many interactions ahead the oracle sees.

    Returns:
        Scores on even-numbered interactions by policy, with `last` and `oracle`.
    """
    last = SourcePolicy(
        name="last",
        policy=make_policy("last", size=target.size),
        size=target.size,
        schedule=target.schedule,
    )
    traces = {
        name: source_sketches(policy, stream) for name, policy in {**policies, "last": last}.items()
    }
    traces["oracle"] = oracle_sketches(target, stream, ahead)
    return {
        name: score_sketches(target, select_parity(trace, even=True))
        for name, trace in traces.items()
    }


def oracle_gain_intervals(oracle: Scores, last: Scores) -> dict[str, list[float]]:
    """Return by metric the 95 % interval of the oracle's gain over last-K; above 0 is better."""
    found = {}
    for row in compare_scores(oracle, last):
        sign = -1 if row["metric"] in LOWER_IS_BETTER else 1
        found[row["metric"]] = sorted((sign * row["low"], sign * row["high"]))
    return found


def share_of_oracle_gain(metric: str, last: float, own: float, oracle: float) -> float | None:
    """Return the share of the oracle's gain over last-K that a policy reaches.

    None if the oracle is no better than last-K.

    >>> covered("rmse", 0.93, 0.92, 0.91)  # doctest: +ELLIPSIS
    0.5...
    """
    gain = last - oracle if metric in LOWER_IS_BETTER else oracle - last
    return (last - own) / (last - oracle) + 0.0 if gain > 0 else None  # + 0.0: no minus zero
