"""Which kernels are used, and that none is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dips.kernels import dispatch, layout
from dips.kernels.dispatch import DecisionSpec, ModelSpec

WITHOUT_COMPILERS = """
import sys
sys.modules["numba"] = sys.modules["triton"] = None
import torch
from dips.kernels import dispatch
dispatch.installed = lambda _: False
import dips
from dips.policy.registry import make_policy
from dips.recommender.dot import DotProduct
from dips.recommender.losses import SquaredError
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.serve.engine import Engine
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream
from dips.testing import random_world
data = random_world([9, 5], items=4, seed=0)
stream = make_stream([data], EventColumns.of(data))
stack = StackedRecommenders.of([DotProduct(items=4, dim=2, loss=SquaredError())])
for name in ("last", "hardest", "learned"):
    policy = make_policy(name, size=2, items=4, dim=2)
    rollout(stream, policy, size=2, schedule=Schedule(), keys=stream.keys([0]), recommenders=stack)
assert "dips.kernels.numba_decisions" not in sys.modules
"""
SQUARED = ModelSpec("dot", "mse", has_times=False, is_linearisable=False, dim=8)
SOFTMAX = ModelSpec("dot", "softmax", has_times=False, is_linearisable=True, dim=8)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "installed", lambda _: True)


def _spec(code: int, signals: tuple[str, ...] = (), model: ModelSpec | None = None) -> DecisionSpec:
    return DecisionSpec(code, signals, model, is_greedy=True, size=4, period=1)


def test_the_library_runs_without_numba_and_triton() -> None:
    """They are imported when a kernel is first used, not before."""
    subprocess.run([sys.executable, "-c", WITHOUT_COMPILERS], check=True)


@pytest.mark.parametrize(
    ("spec", "on_cuda", "in_keeper"),
    [
        (_spec(layout.SET_NETWORK), True, True),
        (_spec(layout.SET_NETWORK, ("residual", "embedding"), SQUARED), True, True),
        (_spec(layout.SET_NETWORK, ("predicted_score", "embedding"), SOFTMAX), True, True),
        (_spec(layout.PAPER_NETWORK), True, True),
        (_spec(layout.HARDEST, ("loss",), SQUARED), True, True),
        (_spec(layout.HARDEST, ("loss",), SQUARED)._replace(half_life=3.0), True, True),
        (_spec(layout.INFLUENCE, ("read",), SQUARED), True, False),
        (_spec(layout.INFLUENCE, ("read",), SQUARED)._replace(half_life=3.0), False, False),
        (_spec(layout.LAST_TOP, ("predicted_score",), SOFTMAX), True, True),
        *((_spec(code), True, True) for code in range(layout.LAST, layout.FREQUENT + 1)),
    ],
)
def test_the_table_of_supported_combinations(
    spec: DecisionSpec, on_cuda: bool, in_keeper: bool
) -> None:
    assert dispatch.compiler_for(spec, CPU) == "numba"
    assert dispatch.compiler_for(spec, CUDA) == ("triton" if on_cuda else "")
    assert dispatch.has_keeper(spec) == in_keeper
    assert not dispatch.has_keeper(spec._replace(period=2))
    assert not dispatch.compiler_for(spec._replace(is_greedy=False), CPU)
    assert not dispatch.compiler_for(spec._replace(code=None), CPU)


def test_a_recommender_must_compute_the_signals() -> None:
    needs = {"residual": SQUARED, "loss": SQUARED, "read": SQUARED, "predicted_score": SOFTMAX}
    for signal, model in needs.items():
        assert signal in dispatch.computed_signals(model)
        for other in (
            None,
            model._replace(has_times=True),
            model._replace(kind="mlp"),
            model._replace(kind="gru"),
            model._replace(loss="bce", is_linearisable=False),
        ):
            if other is not None and other.kind == "mlp" and signal == "predicted_score":
                continue  # a multilayer perceptron is never linearisable
            assert signal not in dispatch.computed_signals(other)


def test_a_keeper_has_no_table_for_very_long_half_lives() -> None:
    spec = _spec(layout.HARDEST, ("loss",), SQUARED)
    assert dispatch.has_keeper(spec._replace(half_life=900.0))
    assert not dispatch.has_keeper(spec._replace(half_life=1e6))
    assert dispatch.compiler_for(spec._replace(half_life=1e6), CPU) == "numba"


def test_decay_factors_end_with_zero() -> None:
    factors = dispatch.decay_factors(2.5)
    assert float(factors[0]) == 1.0
    assert float(factors[-1]) == 0.0
    assert len(dispatch.decay_factors(2.5, longest=7)) == 8
    assert not len(dispatch.decay_factors(None))
