"""Either recommender reads either policy's sketches, and differences add up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.evaluation.comparison import UserSums, user_sums
from dips.evaluation.crossing import cross_scores, effect_shares, paired_effects
from dips.evaluation.progressive import evaluate
from dips.evaluation.transfer import SourcePolicy
from dips.model.trained_model import TrainedModel
from dips.policy.registry import PolicySpec, build_policy
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.recommender.stacked import StackedRecommenders
from dips.stream.users import EventColumns, make_stream

ITEMS = 8


@pytest.fixture
def data(world: Callable[..., Interactions]) -> Interactions:
    return world([9, 3, 14, 6, 11], items=ITEMS, seed=1)


def untrained_model(policy: str, data: Interactions, seed: int) -> TrainedModel:
    spec = RecommenderSpec(
        kind="dot", loss="mse", items=ITEMS, dim=4, offset=3.0, low=2.0, high=4.0
    )
    named = PolicySpec(name=policy, size=2, items=ITEMS, dim=4)
    model = make_recommender(spec, seed=seed).requires_grad_(False)
    model.vectors.mul_(4.0)  # type: ignore[operator, union-attr]
    return TrainedModel(
        spec=spec,
        recommender=model,
        item_ids=data.item_ids,
        policy_spec=named,
        policy=build_policy(named, 3),
        periods=(1,),
    )


def test_crossed_scores_equal_single_evaluations(data: Interactions) -> None:
    models = {
        "last": untrained_model("last", data, 1),
        "reservoir": untrained_model("reservoir", data, 2),
    }
    stream = make_stream([data], EventColumns.of(data))
    policies = {name: SourcePolicy.of(trained) for name, trained in models.items()}
    found = cross_scores(models, policies, stream)
    assert list(found) == [(a, b) for a in models for b in models]
    for (target, source_policy), scores in found.items():
        stack = StackedRecommenders.of([models[target].recommender], "cpu")
        trace = policies[source_policy].roll_out(stream)
        assert scores.metrics == evaluate(stack, trace, low=2.0, high=4.0)[0].metrics
    assert len({scores.metrics["rmse"] for scores in found.values()}) == 4
    sums = user_sums(found["last", "last"], [data.user_id(user) for user in range(data.users)])
    assert list(sums.users) == [data.user_id(user) for user in range(5)]
    assert sums.count.tolist() == [9, 3, 14, 6, 11]


def test_a_policy_that_keeps_everything_has_no_sketches(data: Interactions) -> None:
    everything = SourcePolicy.of(untrained_model("all", data, 1))
    with pytest.raises(ConfigError, match="'all' keeps everything"):
        cross_scores({}, {"all": everything}, make_stream([data], EventColumns.of(data)))


def test_differences_are_new_minus_old_and_add_up() -> None:
    rng = np.random.default_rng(0)
    recall = {("a", "a"): 0.1, ("a", "b"): 0.2, ("b", "a"): 0.15, ("b", "b"): 0.4}
    found = {
        place: [
            UserSums(
                [f"{split}{user}" for user in range(20)],
                np.full(20, 5.0),
                {"recall@20": 5 * (mean + 0.01 * rng.normal(size=20))},
            )
            for split in range(2)
        ]
        for place, mean in recall.items()
    }
    rows = paired_effects(found, "a", "b")
    reported = {(row["changed"], row["while"]): row for row in rows}
    expected = {
        ("sketches", "recommender of a"): 0.1,
        ("sketches", "recommender of b"): 0.25,
        ("recommender", "sketches of a"): 0.05,
        ("recommender", "sketches of b"): 0.2,
        ("both", ""): 0.3,
    }
    assert list(reported) == list(expected)
    for place, diff in expected.items():
        assert reported[place]["diff"] == pytest.approx(diff, abs=0.01)
        assert 0 < reported[place]["low"] < reported[place]["diff"] < reported[place]["high"]
        assert reported[place]["p"] < 0.01
    parts = effect_shares(rows, "recall@20")
    assert parts["sketches"] + parts["recommender"] == pytest.approx(parts["both"])
    assert parts["sketches"] == pytest.approx(0.175, abs=0.01)
