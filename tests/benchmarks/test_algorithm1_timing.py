"""Synthetic steps of Algorithm 1 have the shapes of the steps of an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from benchmarks.algorithm1_timing import StepShape, step_shapes, synthetic_batch
from dips.data.interactions import Interactions
from dips.policy.paper_network import PaperNetwork
from dips.policy.registry import build_policy
from dips.recommender.dot import DotProduct
from dips.recommender.registry import make_recommender
from dips.studies.checks import policy_spec, recommender_spec, resolved
from dips.testing import random_world
from dips.training.algorithm1 import Algorithm1
from dips.training.recipes import build_config


def _algorithm(data: Interactions) -> Algorithm1:
    flags = {
        "policy": "dips", "size": 2, "dim": 3, "inner_steps": 3, "queue": 3, "user_batch": 4,
        "device": "cpu",
    }  # fmt: skip
    config = resolved(data, build_config("paper", None, flags))
    model = make_recommender(recommender_spec(data, config), 0)
    network = build_policy(policy_spec(data, config), 0)
    assert isinstance(model, DotProduct)
    assert isinstance(network, PaperNetwork)
    return Algorithm1(model, network, config)


@pytest.fixture
def data() -> Interactions:
    return random_world([11, 6, 9, 3, 1, 8], items=13, seed=2)


def test_shapes_are_those_of_an_epoch(data: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[StepShape] = []
    step = Algorithm1.step

    def recorded(self: Algorithm1, batch: Any, t: int) -> Tensor:
        loss = step(self, batch, t)
        found.append(StepShape(batch.active(t), batch.queued))
        return loss

    monkeypatch.setattr(Algorithm1, "step", recorded)
    _algorithm(data).epoch(data, seed=0)
    lengths = data.lengths[np.random.default_rng(0).permutation(data.users)]
    parts = [lengths[:4].tolist(), lengths[4:].tolist()]
    assert found == [shape for part in parts for shape in step_shapes(part, 2, 3)]


@pytest.mark.parametrize(
    "shape", [StepShape(5, 0), StepShape(4, 1), StepShape(3, 2), StepShape(1, 3)]
)
def test_a_synthetic_batch_has_the_given_shape(data: Interactions, shape: StepShape) -> None:
    algorithm = _algorithm(data)
    batch, t = synthetic_batch(algorithm, shape)
    algorithm.step(batch, t)
    assert StepShape(batch.active(t), batch.queued) == shape
