"""Source policies and target models, and sizes of equal quality."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dips.data.interactions import Interactions
from dips.evaluation.progressive import evaluate_scores
from dips.evaluation.transfer import (
    SourcePolicy,
    describe_largest_saving,
    describe_ratio,
    largest_saving,
    score_transfer,
    size_ratios,
)
from dips.model.trained_model import TrainedModel
from dips.policy.registry import PolicySpec, build_policy, make_policy
from dips.recommender.gru import GRU
from dips.recommender.losses import FullSoftmax
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.rollout.rollout import rollout
from dips.rollout.trace import StoredTrace
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream

ITEMS = 20


@pytest.fixture
def data(world: Callable[..., Interactions]) -> Interactions:
    return world([9, 3, 14, 1, 6], items=ITEMS, explicit=False, seed=1)


def _untrained_model(policy: str, data: Interactions) -> TrainedModel:
    spec = RecommenderSpec(kind="dot", loss="softmax", items=ITEMS, dim=4)
    named = PolicySpec(name=policy, size=2, items=ITEMS, dim=4)
    model = make_recommender(spec, seed=5)
    with torch.no_grad():
        model.vectors.mul_(9.0)  # type: ignore[operator, union-attr]
    return TrainedModel(
        spec=spec,
        recommender=model.requires_grad_(False),
        item_ids=data.item_ids,
        policy_spec=named,
        policy=build_policy(named, 3),
        periods=(1,),
        seed=7,
    )


@pytest.mark.parametrize("policy", ["hardest", "reservoir", "learned"])
def test_the_target_model_reads_the_sketches_of_the_source_policy(
    policy: str, data: Interactions
) -> None:
    trained, columns = _untrained_model(policy, data), EventColumns.of(data)
    target = GRU(items=ITEMS, loss=FullSoftmax(), dim=6).requires_grad_(False)
    source_policy = SourcePolicy.of(trained)
    stream = make_stream([data], columns)
    trace = source_policy.roll_out(stream)
    found = score_transfer(target, source_policy, data, columns)
    by_hand = evaluate_scores(lambda past: target.predict_all(target.read(past)), trace, 0, ITEMS)
    assert found.metrics == by_hand.metrics
    assert torch.equal(found.count, by_hand.count)
    assert isinstance(trace, StoredTrace)
    seen = trace.sketches(torch.arange(len(trace.event)))
    where = seen >= 0
    assert (seen < trace.event[:, None])[where].all()
    assert (seen.diff(dim=1) > 0)[where[:, 1:]].all()  # in order of time


def test_signals_come_from_the_source_recommender(data: Interactions) -> None:
    trained = _untrained_model("hardest", data)
    stream = make_stream([data], EventColumns.of(data))
    own = SourcePolicy.of(trained).roll_out(stream)
    trained.recommender.bias.copy_(
        torch.randn(ITEMS, 1, generator=torch.Generator().manual_seed(0))
    )  # type: ignore[operator, union-attr]
    other = SourcePolicy.of(trained).roll_out(stream)
    assert isinstance(own, StoredTrace)
    assert isinstance(other, StoredTrace)
    assert not torch.equal(own.kept, other.kept)


def test_random_priorities_depend_on_seed_and_epoch(data: Interactions) -> None:
    stream = make_stream([data], EventColumns.of(data))
    policy = make_policy("reservoir", size=2)
    source_policy = SourcePolicy(
        name="reservoir", policy=policy, size=2, schedule=Schedule((1,)), seed=4
    )
    for epoch in (0, 3):
        expected = rollout(
            stream, policy, size=2, schedule=Schedule((1,)), keys=stream.keys([4], epoch)
        )
        found = source_policy.roll_out(stream, epoch)
        assert isinstance(found, StoredTrace)
        assert isinstance(expected, StoredTrace)
        assert torch.equal(found.kept, expected.kept)


def _summary(
    curves: dict[str, dict[int, float]], metric: str = "recall@20"
) -> list[dict[str, Any]]:
    return [
        {"policy": policy, "size": size, "metric": metric, "mean": mean}
        for policy, curve in curves.items()
        for size, mean in curve.items()
    ]


CURVES = {"learned": {2: 0.2, 4: 0.3, 8: 0.45}, "reservoir": {2: 0.1, 4: 0.2, 8: 0.4}}


def test_ratios_are_interpolated_in_log_size() -> None:
    rows = {(row["policy"], row["size"]): row for row in size_ratios(_summary(CURVES))}
    assert len(rows) == 6
    assert rows["learned", 2]["equal_size"] == pytest.approx(4.0)
    assert rows["learned", 2]["share"] == pytest.approx(0.5)
    assert rows["learned", 4]["equal_size"] == pytest.approx(32**0.5)
    assert rows["learned", 8]["bound"] == "above"
    assert rows["reservoir", 2]["bound"] == "below"
    assert rows["reservoir", 8]["share"] > 1


def test_ratios_compare_values_of_one_metric() -> None:
    both = _summary(CURVES) + _summary(CURVES, "mrr@20")
    assert size_ratios(both)[:6] == size_ratios(_summary(CURVES))
    assert len(size_ratios(both)) == 12


def test_the_description_of_the_largest_saving() -> None:
    ratios = size_ratios(_summary(CURVES))
    best = largest_saving(ratios, "recall@20", "learned", "reservoir")
    assert best is not None
    assert describe_ratio(best) == "learned at 2 equals reservoir at 4: 50 % fewer"
    assert largest_saving(ratios, "recall@20", "learned", "last") is None
    said = {(row["policy"], row["size"]): describe_ratio(row) for row in ratios}
    assert said["learned", 8] == "learned at 8 is better than reservoir at any size to 8"
    assert said["reservoir", 2] == "reservoir at 2 is worse than learned at 2"
    assert said["reservoir", 4] == "reservoir at 4 equals learned at 2: 100 % more"


def test_no_saving_has_no_percentage() -> None:
    same = size_ratios(_summary({"last": {2: 0.2, 4: 0.3}, "reservoir": {2: 0.2, 4: 0.3}}))
    assert describe_ratio(same[0]) == "last at 2 equals reservoir at 2"


def test_a_policy_that_is_never_as_good_is_described_so() -> None:
    def said(**last: float) -> str:
        sizes = {int(name[1:]): value for name, value in last.items()}
        ratios = size_ratios(_summary({"last": sizes, "reservoir": {1: 0.2, 2: 0.3}}))
        best = largest_saving(ratios, "recall@20", "last", "reservoir")
        assert best is not None
        return describe_largest_saving(best)

    assert said(k1=0.1, k2=0.15) == "last is never as good as reservoir at the sizes tried"
    assert said(k1=0.1, k2=0.2) == "last at 2 equals reservoir at 1: 100 % more"
