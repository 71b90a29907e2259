"""Unknown items: items of events that the model was not trained on."""

from __future__ import annotations

import numpy as np
import pytest

from dips.serve.keeper import open_keeper
from dips.testing import random_world
from tests.serve.models import events_of, make_model


@pytest.mark.parametrize("policy", ["last", "hardest", "influence", "learned", "dips"])
@pytest.mark.parametrize("loss", ["mse", "softmax"])
def test_unknown_items_are_applied(policy, loss):
    """The sketches do not depend on how events are batched."""
    trained = make_model(policy, 3, (2,), loss=loss)
    log = events_of(random_world([20, 15, 9], items=12, explicit=trained.explicit))
    for place, event in enumerate(log):
        event["item"] = f"new {place % 4}" if place % 3 == 0 else event["item"]
    held = []
    for batch in (1, 1000):
        keeper = open_keeper(trained, "memory:", batch=batch)
        assert keeper.observe_many(log).applied == len(log)
        held.append(keeper.sketches(["0", "1", "2"]))
        assert len(keeper.recommend("0", 5)) == 5
    assert held[0] == held[1]
    kept = any("new" in entry.item for sketch in held[0] for entry in sketch.entries)
    if policy != "dips":  # its choice depends on its random parameters
        assert kept == (policy == "last")  # others keep what is hard to predict: their loss is 0


def test_the_paper_s_network_uses_mean_parameters_for_unknown_items():
    trained = make_model("dips", 2)
    policy = trained.policy
    weight, bias = policy.output_weight.mean(0), policy.output_bias.mean(0)
    keeper = open_keeper(trained, "memory:")
    wide = keeper._engine._policy
    unknown = wide.output_weight[12:]
    assert np.allclose(unknown, weight.expand(len(unknown), -1), atol=1e-6)
    assert np.allclose(wide.output_bias[12:], bias, atol=1e-6)
    assert np.array_equal(wide.output_weight[:12], policy.output_weight)
