"""TrainingRollouts and policies to hold one way of walking against the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dips.policy.base import Policy, signals_of
from dips.policy.network import PaperNetwork
from dips.policy.set_network import SetNetwork
from dips.policy.stacked import StackedPolicies
from dips.recommender.stacked import StackedRecommenders
from dips.rollout import compiled
from dips.rollout.rollout import Rollout
from dips.rollout.trace import StoredTrace
from dips.stream.schedule import Schedule
from dips.stream.users import Stream

ITEMS, DIM, RUNS = 6, 3, 2


def shaken(module: nn.Module, seed: int) -> nn.Module:
    """Parameters far from where they start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.parameters():
            value.add_(torch.randn(value.shape, generator=generator) / 2)
    return module


def networks_of(
    kind: str, dim: int = DIM, spread: float = 1.3, predicted_score: bool = False
) -> StackedPolicies:
    """A policy for each run, no two alike."""
    made: list[nn.Module] = []
    for seed in range(RUNS):
        if kind == "paper":
            made.append(shaken(PaperNetwork(items=ITEMS, hidden=5), seed))
        else:
            rest = {
                "center": 3.0 + seed,
                "spread": spread,
                "slope": 0.1,
                "predicted_score": predicted_score,
            }
            network = SetNetwork(dim=dim, hidden=5, **rest)  # type: ignore[arg-type]
            made.append(shaken(network, seed))
    return StackedPolicies.of(made)


def walk_long(*arguments: Any, **settings: Any) -> dict[str, Tensor]:
    """Walk refresh by refresh."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "COMPILERS", {})
        return everything(*arguments, **settings)


def everything(
    stream: Stream, policy: Policy, stack: StackedRecommenders, size: int, periods: tuple[int, ...],
    stretch: int = 100, **rest: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """All that a walk leaves behind."""
    told = [
        name
        for name in ("predicted_score", "residual")
        if policy.required_signals and name in signals_of(policy)
    ]
    settings = {"with_scores": True, "noted": told, **rest}
    keys = stream.keys([0] * stream.runs)
    walk = Rollout(stream, size=size, schedule=Schedule(periods), keys=keys, **settings)
    for first in range(0, stream.longest + 1, stretch):
        walk.advance(policy, stack, first + stretch)
    trace = walk.trace
    assert isinstance(trace, StoredTrace)
    assert trace.final is not None
    assert trace.asked is not None
    left = {f"final.{name}": value for name, value in trace.final._asdict().items()}
    left |= {"kept": trace.kept, "repeats": trace.repeats, **trace.asked.answers}
    if trace.scores is not None and trace.final_scores is not None:
        left |= {"scores": trace.scores, "final_scores": trace.final_scores}
    return left


def same(short: dict[str, Tensor], long: dict[str, Tensor]) -> None:
    assert short.keys() == long.keys()
    for name, value in long.items():
        assert torch.equal(short[name].nan_to_num(-77.0), value.nan_to_num(-77.0)), name
