"""The oracle does what it says, sees nothing of what is scored, and is better where it looked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from dips.data.interactions import Interactions
from dips.evaluation import headroom
from dips.evaluation.crossing import score_sketches
from dips.evaluation.headroom import (
    oracle_gain_intervals,
    oracle_sketches,
    score_against_oracle,
    select_parity,
    share_of_oracle_gain,
)
from dips.evaluation.progressive import Scores
from dips.evaluation.transfer import SourcePolicy
from dips.model.trained_model import TrainedModel
from dips.policy.registry import PolicySpec, build_policy
from dips.recommender.base import Evidence, Recommender
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import StoredTrace
from dips.stream.users import EventColumns, Stream, make_stream

ITEMS = 12
LENGTHS = [9, 3, 26, 1, 17, 14]


def untrained_model(data: Interactions, period: int = 1, policy: str = "reservoir") -> TrainedModel:
    explicit = data.explicit
    spec = RecommenderSpec(
        kind="dot", loss="mse" if explicit else "softmax", items=ITEMS, dim=4, inner_lr=0.2,
        low=1.0, high=5.0,
    )  # fmt: skip
    named = PolicySpec(name=policy, size=3, items=ITEMS, dim=4)
    model = make_recommender(spec, seed=5)
    with torch.no_grad():
        model.vectors.mul_(6.0)  # type: ignore[operator, union-attr]
    return TrainedModel(
        spec=spec, recommender=model.requires_grad_(False), item_ids=data.item_ids,
        policy_spec=named, policy=build_policy(named, 3), periods=(period,), seed=7,
    )  # fmt: skip


def stream(data: Interactions) -> Stream:
    return make_stream([data], EventColumns.of(data))


def slow_oracle(
    trained: TrainedModel, data: Interactions, ahead: int
) -> dict[tuple[int, int], list[int]]:
    """By user and step, the positions kept: one user, one choice, one sketch at a time."""
    quantized = StackedRecommenders.of([trained.recommender], "cpu").quantized()
    period, found = trained.periods[0], {}

    def lost(events: np.ndarray, revealed: int, kept: list[int], future: list[int]) -> float:
        rating = np.ones(len(data.item)) if data.rating is None else data.rating
        past, later = events[kept], events[future]

        def total(model: Recommender, *fields: torch.Tensor) -> torch.Tensor:
            item, given, token, outcome = fields
            sketch = Evidence.new(item, given, torch.ones_like(given), torch.tensor([len(kept)]))
            user = model.read(sketch)
            if not (model.masks_sketch or model.masks_seen):
                return model.losses(user, token, outcome).sum()
            if model.masks_seen:
                item = torch.tensor(data.item[events[:revealed]].astype(np.int64))[None]
            scores = model.predict_all(user)[0]
            each = [scores[baselines(item[0], one)].logsumexp(0) - scores[one] for one in token[0]]
            return torch.stack(each).sum()

        fields = [data.item[past], rating[past], data.item[later], rating[later]]
        tensors = [torch.tensor(np.asarray(field, float))[None, None] for field in fields]
        tensors[0], tensors[2] = tensors[0].long(), tensors[2].long()
        return float(quantized.call(total, *tensors))

    def baselines(item: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        every = torch.arange(ITEMS)
        return every[(every[:, None] != item).all(1) | (every == target)]

    for user in range(data.users):
        events = data.starts[user] + np.arange(data.lengths[user])
        kept: list[int] = []
        for step in range(len(events)):
            found[user, step] = list(kept)
            fresh = list(range(step + 1))  # revealed by now
            if step < trained.size:
                kept = fresh
            elif (step + 1 - trained.size) % period == 0:
                kept += fresh[-period:]
                future = [p for p in range(step + 1, min(step + 1 + ahead, len(events)))]
                future = [position for position in future if (position + 1) % 2 == 1]
                while len(kept) > trained.size:
                    losses = [
                        lost(events, step + 1, [k for k in kept if k != one], future)
                        if future
                        else 0.0
                        for one in kept
                    ]
                    kept.pop(int(np.argmin(np.round(losses, 6))))
    return found


def positions(trace: StoredTrace) -> dict[tuple[int, int], list[int]]:
    first = trace.event - trace.step
    return {
        (int(user), int(step)): [int(event - start) for event in kept if event >= 0]
        for user, step, start, kept in zip(trace.user, trace.step, first, trace.kept, strict=True)
    }


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize(("period", "ahead"), [(1, 10), (2, 10), (1, 3)])
def test_the_oracle_equals_a_slow_loop(
    world: Callable[..., Interactions], explicit: bool, period: int, ahead: int
) -> None:
    data = world(LENGTHS, items=ITEMS, explicit=explicit, seed=3)
    trained = untrained_model(data, period)
    trace = oracle_sketches(trained, stream(data), ahead)
    assert positions(trace) == slow_oracle(trained, data, ahead)


def test_the_oracle_respects_filter_sketch(world: Callable[..., Interactions]) -> None:
    data = world(LENGTHS, items=ITEMS, explicit=False, seed=3)
    trained = untrained_model(data)
    plain = positions(oracle_sketches(trained, stream(data)))
    trained.recommender.masks_sketch = True
    found = positions(oracle_sketches(trained, stream(data)))
    assert found == slow_oracle(trained, data, 10)
    assert found != plain


def test_the_oracle_respects_filter_seen(
    world: Callable[..., Interactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was met before the refresh is filtered; also in chunks of one row."""
    data = world(LENGTHS, items=ITEMS, explicit=False, seed=3)
    trained = untrained_model(data)
    plain = positions(oracle_sketches(trained, stream(data)))
    trained.recommender.masks_seen = True
    found = positions(oracle_sketches(trained, stream(data)))
    assert found == slow_oracle(trained, data, 10)
    assert found != plain
    monkeypatch.setattr(headroom, "CHUNK", 1)
    assert positions(oracle_sketches(trained, stream(data))) == found


def with_other_outcomes(data: Interactions, since: int, *, even: bool) -> Interactions:
    """Outcomes of all even- or odd-numbered interactions from a position on are others."""
    place = np.arange(len(data.item)) - np.repeat(data.starts, data.lengths)
    changed = (place >= since) & ((place + 1) % 2 == (0 if even else 1))
    item = np.where(changed, (data.item + 5) % ITEMS, data.item).astype(data.item.dtype)
    if data.rating is None:
        return replace(data, item=item)
    return replace(data, item=item, rating=np.where(changed, 6 - data.rating, data.rating))


@pytest.mark.parametrize("explicit", [True, False])
def test_no_decision_uses_an_even_numbered_interaction_before_it_is_revealed(
    world: Callable[..., Interactions], explicit: bool
) -> None:
    data = world(LENGTHS, items=ITEMS, explicit=explicit, seed=3)
    trained = untrained_model(data)
    before = positions(oracle_sketches(trained, stream(data)))
    noticed = 0
    for since in range(1, max(LENGTHS), 4):
        early = {place: kept for place, kept in before.items() if place[1] <= since}
        for even in (True, False):
            other = with_other_outcomes(data, since, even=even)
            after = positions(oracle_sketches(trained, stream(other)))
            same = all(after[place] == kept for place, kept in early.items())
            assert same or not even
            noticed += not same
    assert noticed  # odd-numbered ones are looked at


@pytest.mark.parametrize("even", [True, False])
def test_selected_predictions_keep_their_sketches(
    world: Callable[..., Interactions], even: bool
) -> None:
    data = world([20] * 3, items=ITEMS, explicit=False, seed=2)
    trace = SourcePolicy.of(untrained_model(data, policy="last")).roll_out(stream(data))
    assert isinstance(trace, StoredTrace)
    rows = torch.arange(len(trace.event))[trace.step % 2 == int(even)]
    whole, some = trace.evidence(rows), select_parity(trace, even=even)
    assert float(whole.repeats.max()) > 1
    for mine, own in zip(some.evidence(torch.arange(len(rows))), whole, strict=True):
        assert torch.equal(mine, own)


@pytest.mark.parametrize("explicit", [True, False])
def test_the_oracle_beats_last_on_odd_numbered_interactions(
    world: Callable[..., Interactions], explicit: bool
) -> None:
    data = world([40] * 12, items=ITEMS, explicit=explicit, seed=1)
    trained = untrained_model(data, policy="last")
    last = SourcePolicy.of(trained).roll_out(stream(data))
    assert isinstance(last, StoredTrace)
    traces = (oracle_sketches(trained, stream(data)), last)
    metrics = [
        score_sketches(trained, select_parity(trace, even=False)).metrics for trace in traces
    ]
    if explicit:
        assert metrics[0]["rmse"] < metrics[1]["rmse"]
    else:
        assert metrics[0]["mrr@20"] > metrics[1]["mrr@20"]


def test_all_are_scored_on_even_numbered_interactions_only(
    world: Callable[..., Interactions],
) -> None:
    data = world(LENGTHS, items=ITEMS, seed=3)
    trained = untrained_model(data)
    found = score_against_oracle(trained, {"own": SourcePolicy.of(trained)}, stream(data))
    assert list(found) == ["own", "last", "oracle"]
    for scores in found.values():
        assert scores.count.tolist() == [length // 2 for length in LENGTHS]
    own = SourcePolicy.of(trained).roll_out(stream(data))
    assert isinstance(own, StoredTrace)
    even, odd = (select_parity(own, even=side) for side in (True, False))
    assert set((even.step + 1).tolist()) == set(range(2, 27, 2))
    both = (
        score_sketches(trained, even).sums["squared_error"].sum()
        + score_sketches(trained, odd).sums["squared_error"].sum()
    )
    assert float(both) == pytest.approx(
        float(score_sketches(trained, own).sums["squared_error"].sum())
    )
    assert found["own"].metrics == score_sketches(trained, even).metrics


@pytest.mark.parametrize(("term", "metric"), [("squared_error", "rmse"), ("recall@20",) * 2])
def test_the_gain_interval_is_positive_if_the_oracle_is_better(term: str, metric: str) -> None:
    def scores(each: float) -> Scores:
        count = torch.full((30,), 10.0, dtype=torch.float64)
        sums = {term: count * (each + 0.001 * torch.arange(30))}
        return Scores({metric: each}, count, sums)

    good, bad = (0.5, 0.9) if metric == "rmse" else (0.9, 0.5)
    low, high = oracle_gain_intervals(scores(good), scores(bad))[metric]
    assert 0 < low <= high
    low, high = oracle_gain_intervals(scores(bad), scores(good))[metric]
    assert low <= high < 0


def test_the_share_of_the_oracle_gain() -> None:
    assert share_of_oracle_gain("rmse", 0.93, 0.92, 0.90) == pytest.approx(1 / 3)
    assert share_of_oracle_gain("rmse", 0.93, 0.94, 0.90) == pytest.approx(-1 / 3)
    assert share_of_oracle_gain("recall@20", 0.2, 0.25, 0.3) == pytest.approx(0.5)
    assert share_of_oracle_gain("recall@20", 0.2, 0.25, 0.2) is None
    assert share_of_oracle_gain("rmse", 0.90, 0.89, 0.93) is None
