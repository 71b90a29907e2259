"""Histories that are read once rank as prefixes that are read apart; any scores can be ranked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from dips.data.interactions import Interactions
from dips.evaluation import progressive
from dips.evaluation.progressive import evaluate, evaluate_scores, predict
from dips.policy.registry import make_policy
from dips.recommender.gru import GRU
from dips.recommender.losses import FullSoftmax
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream

World = Callable[..., Interactions]
ITEMS = 30


def _walk(data: Interactions, policy: str, size: int) -> Trace:
    stream = make_stream([data], EventColumns.of(data))
    return rollout(
        stream,
        make_policy(policy, size=size),
        size=size,
        schedule=Schedule((1,)),
        keys=stream.keys([0]),
    )


@pytest.fixture
def data(world: World) -> Interactions:
    """Users of whom some count late."""
    made = world([9, 3, 14, 1, 6], items=ITEMS, explicit=False, seed=1)
    return replace(made, warmup=np.array([2, 0, 0, 0, 5]))


@pytest.fixture
def model() -> GRU:
    """A recurrence whose scores differ."""
    return GRU(items=ITEMS, loss=FullSoftmax(), dim=6).requires_grad_(False)


def test_one_pass_over_a_history_equals_one_pass_per_prediction(
    data: Interactions, model: GRU, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sketch that is large enough is the whole history, read prefix by prefix."""
    stack = StackedRecommenders.of([model])
    apart = predict(stack, _walk(data, "last", 14), 0)
    at_once = predict(stack, _walk(data, "all", 1), 0)
    assert torch.equal(apart.target, at_once.target)
    assert torch.equal(apart.output, at_once.output)
    monkeypatch.setattr(progressive, "CHUNK", 5 * ITEMS)  # five predictions at a time
    assert torch.equal(predict(stack, _walk(data, "all", 1), 0).output, at_once.output)


def test_one_pass_filters_the_same_items(data: Interactions, model: GRU) -> None:
    """A sequential recommender filters sketch items also with full histories."""
    plain = predict(StackedRecommenders.of([model]), _walk(data, "all", 1), 0).output
    model.masks_sketch = True
    stack = StackedRecommenders.of([model])
    at_once = predict(stack, _walk(data, "all", 1), 0).output
    assert torch.equal(predict(stack, _walk(data, "last", 14), 0).output, at_once)
    assert not torch.equal(plain, at_once)


def test_evaluate_scores_ranks_like_evaluate(data: Interactions, model: GRU) -> None:
    trace = _walk(data, "last", 3)
    expected = evaluate(StackedRecommenders.of([model]), trace)[0]
    for breadth in (1, 1 << 25):
        found = evaluate_scores(lambda past: model.predict_all(model.read(past)), trace, 0, breadth)
        assert found.metrics == expected.metrics
        assert torch.equal(found.count, expected.count)
    tied = evaluate_scores(lambda past: torch.zeros(len(past.item), ITEMS), trace, 0, ITEMS)
    assert tied.metrics["mrr@20"] == pytest.approx(1 / 15.5)  # in the middle of all


def test_one_pass_filters_the_same_seen_items(data: Interactions, model: GRU) -> None:
    """Whole histories are filtered, whatever the sketch holds, and the target is not."""
    plain = predict(StackedRecommenders.of([model]), _walk(data, "all", 1), 0).output
    model.masks_seen = True
    stack, trace = StackedRecommenders.of([model]), _walk(data, "all", 1)
    at_once = predict(stack, trace, 0).output
    assert torch.equal(predict(stack, _walk(data, "last", 14), 0).output, at_once)
    assert bool((at_once <= plain).all())
    assert bool((at_once < plain).any())
    model.masks_seen, model.masks_sketch = False, True
    repeated = (trace.seen_items(torch.arange(len(trace.event))) == trace.columns.item[
        trace.event
    ][:, None]).any(1)  # fmt: skip
    sketch = predict(StackedRecommenders.of([model]), trace, 0).output
    assert torch.equal(sketch[~repeated], at_once[~repeated])
    assert bool((sketch > at_once)[repeated].all())
