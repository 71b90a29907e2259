"""Rollouts on the reference path and by kernels, for tests that compare them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dips.kernels import dispatch
from dips.policy.base import Policy, signals_of
from dips.policy.paper_network import PaperNetwork
from dips.policy.set_network import SetNetwork
from dips.policy.stacked import StackedPolicies
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import Rollout
from dips.rollout.trace import StoredTrace
from dips.stream.schedule import Schedule
from dips.stream.users import Stream

ITEMS, DIM, RUNS = 6, 3, 2


def randomized(module: nn.Module, seed: int) -> nn.Module:
    """Add noise to all parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.parameters():
            value.add_(torch.randn(value.shape, generator=generator) / 2)
    return module


def networks_of(
    kind: str, dim: int = DIM, spread: float = 1.3, predicted_score: bool = False
) -> StackedPolicies:
    """Return a different policy for each run."""
    made: list[nn.Module] = []
    for seed in range(RUNS):
        if kind == "paper":
            paper = PaperNetwork(items=ITEMS, hidden=5, spread=spread + seed / 3)
            made.append(randomized(paper, seed))
        else:
            rest = {
                "center": 3.0 + seed,
                "spread": spread,
                "slope": 0.1,
                "predicted_score": predicted_score,
            }
            network = SetNetwork(dim=dim, hidden=5, **rest)  # type: ignore[arg-type]
            made.append(randomized(network, seed))
    return StackedPolicies.of(made)


def reference(*arguments: Any, **settings: Any) -> dict[str, Tensor]:
    """Roll out refresh by refresh in torch, without any kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "installed", lambda _: False)
        return everything(*arguments, **settings)


def compiled(compiler: str, *arguments: Any, **settings: Any) -> dict[str, Tensor]:
    """Roll out by kernels; fail if the reference path is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(dispatch.COMPILERS, "cpu", compiler)
        patch.setattr("dips.rollout.rollout.Rollout._transition", None)
        return everything(*arguments, **settings)


def everything(
    stream: Stream, policy: Policy, stack: StackedRecommenders, size: int, periods: tuple[int, ...],
    update_interval: int = 100, **rest: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """Return all tensors of a rollout."""
    signals = [
        name
        for name in ("predicted_score", "residual")
        if policy.required_signals and name in signals_of(policy)
    ]
    settings = {"with_scores": True, "recorded_signals": signals, **rest}
    keys = stream.keys(list(range(stream.runs)))
    rolled = Rollout(stream, size=size, schedule=Schedule(periods), keys=keys, **settings)
    for first in range(0, stream.longest + 1, update_interval):
        rolled.advance(policy, stack, first + update_interval)
    trace = rolled.trace
    assert isinstance(trace, StoredTrace)
    assert trace.final is not None
    assert trace.inputs is not None
    found = {f"final.{name}": value for name, value in trace.final._asdict().items()}
    found |= {"kept": trace.kept, "repeats": trace.repeats, **trace.inputs.signals}
    if trace.scores is not None and trace.final_scores is not None:
        found |= {"scores": trace.scores, "final_scores": trace.final_scores}
    return found


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Compare all tensors bit for bit; NaN equals NaN."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name].nan_to_num(-77.0), value.nan_to_num(-77.0)), name
