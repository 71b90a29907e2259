"""Stacked modules compute what each module computes alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dips.numerics.stacking import StackedModules, call_stacked, strip_prefix


def _modules(runs: int) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(runs)]


def _loss(module: nn.Module, rows: Tensor) -> Tensor:
    loss: Tensor = module(rows).square().sum()
    return loss


@pytest.mark.parametrize("runs", [1, 3])
def test_values_and_gradients_equal_those_of_single_modules(runs: int) -> None:
    modules = _modules(runs)
    rows = torch.randn(runs, 5, 3, generator=torch.Generator().manual_seed(1))
    stacked = StackedModules.of(modules)
    state = {name: value.requires_grad_() for name, value in stacked.state.items()}
    losses = call_stacked(stacked.template, state, _loss, rows)
    assert losses.shape == (runs,)
    found = torch.autograd.grad(losses.sum(), list(state.values()))
    gradients = dict(zip(state, found, strict=True))
    for run, module in enumerate(modules):
        loss = _loss(module, rows[run])
        torch.testing.assert_close(losses[run], loss)
        for name, value in module.named_parameters():
            (expected,) = torch.autograd.grad(loss, value, retain_graph=True)
            torch.testing.assert_close(gradients[name][run], expected)


def test_runs_can_be_selected_and_taken_out() -> None:
    modules = _modules(3)
    stacked = StackedModules.of(modules)
    assert stacked.runs == 3
    assert stacked.trainable == [name for name, _ in modules[0].named_parameters()]
    twice = stacked.select([2, 0, 2])
    for place, run in enumerate((2, 0, 2)):
        for name, value in modules[run].state_dict().items():
            assert torch.equal(twice.state[name][place], value)
            assert torch.equal(stacked.one(run).state_dict()[name], value)
    assert StackedModules.of(modules[:1]).select([0, 0]).runs == 2


def test_dropout_differs_between_runs() -> None:
    modules = [nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))] * 2
    stacked = StackedModules.of(modules)
    rows = torch.ones(2, 40, 3)
    first, second = call_stacked(
        stacked.template, stacked.state, lambda module, given: module(given), rows
    )
    assert not torch.equal(first == 0, second == 0)


def test_a_prefix_is_stripped() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    assert strip_prefix("policy.", {"policy.a": one, "recommender.a": two}) == {"a": one}
