"""Signals are computed once, when first used, and detached; missing ones are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.sketch.signals import SIGNALS, Reading, Signals


def _counting(calls: list[str]) -> Signals:
    def compute(name: str) -> Tensor:
        calls.append(name)
        return torch.ones(1, 2, requires_grad=True)

    tensors = {name: lambda name=name: compute(name) for name in SIGNALS if name != "read"}
    reading = Reading(lambda: torch.zeros(1, 2), lambda damping: torch.full((1, 2), damping))
    return Signals(tensors, lambda weights: reading)


def test_a_tensor_is_computed_once_and_only_if_used() -> None:
    calls: list[str] = []
    signals = _counting(calls)
    assert signals.loss is signals.loss
    assert calls == list(signals.computed) == ["loss"]
    assert list(signals.select(("residual", "loss"))) == ["residual", "loss"]
    assert calls == ["loss", "residual"]


def test_tensors_are_detached() -> None:
    signals = _counting([])
    for name in SIGNALS[:-1]:
        assert not getattr(signals, name).requires_grad
    assert list(signals.computed) == list(SIGNALS[:-1])


def test_without_a_recommender_every_signal_is_refused() -> None:
    for name in SIGNALS[:-1]:
        with pytest.raises(ConfigError, match=rf"signals\.{name} is not available"):
            getattr(Signals(), name)
    with pytest.raises(ConfigError, match="roll the policy out with a recommender"):
        Signals().read(torch.ones(1, 1))


def test_only_the_named_signals_are_available() -> None:
    signals = _counting([]).only(("loss", "read"))
    assert signals.loss.shape == (1, 2)
    assert signals.read(torch.ones(1, 2)).influences(0.5).tolist() == [[0.5, 0.5]]
    with pytest.raises(ConfigError, match=r"signals\.residual is not available: name it in"):
        _ = signals.residual
    with pytest.raises(ConfigError, match=r"signals\.read is not available"):
        _counting([]).only(("loss",)).read(torch.ones(1, 2))


def test_signals_of_known_tensors() -> None:
    residual = torch.tensor([[1.0, 2.0]])
    assert torch.equal(Signals.of({"residual": residual}).residual, residual)
