"""Stacked Adam and SGD equal the optimizers of torch on each run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dips.training.optimizers import StackedAdam, StackedSGD

RATES, DECAYS = [0.1, 0.01, 0.003], [0.0, 0.02, 0.5]


def _start() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "vectors": torch.randn(3, 5, 2, generator=generator),
        "bias": torch.randn(3, 5, generator=generator),
        "loading": torch.randn(3, generator=generator),
    }


def _gradient(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    scale = 10.0 ** (step % 5 - 3)  # from tiny to large
    return {
        name: torch.randn(value.shape, generator=generator) * scale
        for name, value in _start().items()
    }


def _reference(run: int, steps: list[int]) -> dict[str, Tensor]:
    parameters = {name: torch.nn.Parameter(value[run].clone()) for name, value in _start().items()}
    groups = [
        {"params": [parameters["vectors"]], "weight_decay": DECAYS[run]},
        {"params": [parameters["bias"], parameters["loading"]], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.Adam(groups, lr=RATES[run])
    for step in steps:
        for name, value in parameters.items():
            value.grad = _gradient(step)[name][run].clone()
        optimizer.step()
    return {name: value.detach() for name, value in parameters.items()}


def _stacked() -> tuple[dict[str, Tensor], StackedAdam]:
    parameters = _start()
    return parameters, StackedAdam(parameters, torch.tensor(DECAYS), ("bias", "loading"))


def test_equals_torch_for_every_run() -> None:
    parameters, optimizer = _stacked()
    for step in range(30):
        optimizer.step(parameters, _gradient(step), torch.tensor(RATES), torch.ones(3))
    for run in range(3):
        for name, expected in _reference(run, list(range(30))).items():
            torch.testing.assert_close(parameters[name][run], expected, atol=1e-6, rtol=1e-5)


def test_inactive_runs_keep_parameters_and_step_count() -> None:
    parameters, optimizer = _stacked()
    active = {0: [1.0, 1.0, 0.0], 1: [1.0, 0.0, 0.0], 2: [1.0, 1.0, 0.0], 3: [0.0, 1.0, 0.0]}
    for step in range(4):
        before = {name: value.clone() for name, value in parameters.items()}
        moves = torch.tensor(active[step])
        optimizer.step(parameters, _gradient(step), torch.tensor(RATES), moves)
        for run in range(3):
            if not active[step][run]:
                for name, value in parameters.items():
                    assert torch.equal(value[run], before[name][run])
    assert optimizer.steps.tolist() == [3, 3, 0]
    for run, steps in {0: [0, 1, 2], 1: [0, 2, 3]}.items():
        for name, expected in _reference(run, steps).items():
            torch.testing.assert_close(parameters[name][run], expected, atol=1e-6, rtol=1e-5)
    start = _start()
    for name, value in parameters.items():
        assert torch.equal(value[2], start[name][2])


def test_a_run_that_is_not_finite_does_not_change_others() -> None:
    parameters, optimizer = _stacked()
    gradient = _gradient(0)
    for value in gradient.values():
        value[1] = torch.nan
    optimizer.step(parameters, gradient, torch.tensor(RATES), torch.tensor([1.0, 0.0, 1.0]))
    for value in parameters.values():
        assert bool(value.isfinite().all())
    for run in (0, 2):
        for name, expected in _reference(run, [0]).items():
            torch.testing.assert_close(parameters[name][run], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cut", [1, 7])
def test_adam_resumes_from_its_state(cut: int) -> None:
    whole, optimizer = _stacked()
    half, first = _stacked()
    for step in range(12):
        optimizer.step(whole, _gradient(step), torch.tensor(RATES), torch.ones(3))
    for step in range(cut):
        first.step(half, _gradient(step), torch.tensor(RATES), torch.ones(3))
    state = {name: value.clone() for name, value in first.state().items()}
    second = StackedAdam(half, torch.tensor(DECAYS), ("bias", "loading"))
    second.load(state)
    for step in range(cut, 12):
        second.step(half, _gradient(step), torch.tensor(RATES), torch.ones(3))
    for name, value in whole.items():
        assert torch.equal(half[name], value)


def _sgd(run: int, steps: list[int]) -> dict[str, Tensor]:
    parameters = {name: torch.nn.Parameter(value[run].clone()) for name, value in _start().items()}
    optimizer = torch.optim.SGD(
        parameters.values(), lr=RATES[run], momentum=0.9, weight_decay=DECAYS[run]
    )
    for step in steps:
        for name, value in parameters.items():
            value.grad = _gradient(step)[name][run].clone()
        optimizer.step()
    return {name: value.detach() for name, value in parameters.items()}


def test_sgd_equals_torch_for_every_run() -> None:
    """With momentum and weight decay. An inactive run keeps its momentum."""
    parameters = _start()
    optimizer = StackedSGD(parameters, torch.tensor(DECAYS))
    for step in range(20):
        active = torch.tensor([1.0, float(step % 3 > 0), 0.0])
        optimizer.step(parameters, _gradient(step), torch.tensor(RATES), active)
    some = [step for step in range(20) if step % 3 > 0]
    for run, steps in enumerate([list(range(20)), some, []]):
        for name, expected in _sgd(run, steps).items():
            torch.testing.assert_close(parameters[name][run], expected, atol=1e-6, rtol=1e-5)


def test_sgd_resumes_from_its_state() -> None:
    whole, half = _start(), _start()
    optimizer, first, second = (StackedSGD(_start(), torch.tensor(DECAYS)) for _ in range(3))
    for step in range(6):
        optimizer.step(whole, _gradient(step), torch.tensor(RATES), torch.ones(3))
    for step in range(3):
        first.step(half, _gradient(step), torch.tensor(RATES), torch.ones(3))
    second.load({name: value.clone() for name, value in first.state().items()})
    for step in range(3, 6):
        second.step(half, _gradient(step), torch.tensor(RATES), torch.ones(3))
    for name, value in whole.items():
        assert torch.equal(half[name], value)


def test_parameters_in_float64() -> None:
    """Policies of users may have such parameters."""
    parameters = {name: value.double() for name, value in _start().items()}
    optimizer = StackedAdam(parameters, torch.tensor(DECAYS), ("bias", "loading"))
    for step in range(5):
        gradients = {name: value.double() for name, value in _gradient(step).items()}
        optimizer.step(parameters, gradients, torch.tensor(RATES), torch.ones(3))
    for run in range(3):
        for name, expected in _reference(run, list(range(5))).items():
            assert parameters[name].dtype == torch.float64
            torch.testing.assert_close(
                parameters[name][run].float(), expected, atol=1e-6, rtol=1e-5
            )
