"""LazyAdam updates only the rows that a step reads, by the rule in its docstring."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.data.readers.layouts import read_source
from dips.data.readers.source import open_source
from dips.recommender.losses import FullSoftmax
from dips.studies.checks import split
from dips.studies.run import train_runs
from dips.testing import random_world
from dips.training import state as fitting_module
from dips.training.lazy_adam import NOWHERE, LazyAdam, pick_rows, touched_rows
from dips.training.optimizers import StackedAdam
from dips.training.recipes import build_config
from dips.training.recommender_gradients import items_read, recommender_gradients
from dips.training.rollouts import Job, TrainingRollouts
from dips.training.state import TrainingState
from dips.training.trainer import fit

RATES, DECAYS = torch.tensor([0.1, 0.01]), torch.tensor([0.02, 0.5])
ITEMS, STEPS = 6, 25
LENGTHS = [9, 3, 12, 1, 7, 11, 4, 8, 6, 5, 10, 2, 9, 7]
Make = Callable[..., Any]


def _start() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "vectors": torch.randn(2, ITEMS, 3, generator=generator).double(),
        "bias": torch.randn(2, ITEMS, 1, generator=generator).double(),
        "loading": torch.randn(2, generator=generator).double(),
    }


def _lazy(parameters: dict[str, Tensor]) -> LazyAdam:
    return LazyAdam(parameters, DECAYS, ("bias", "loading"), ("vectors", "bias", "categories"))


def _gradients_of(step: int) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Return read items [2, 4] with repeats and padding, dense gradients, and active runs."""
    generator = torch.Generator().manual_seed(100 + step)
    items = torch.randint(-1, ITEMS - 1, (2, 4), generator=generator)  # the last item is never read
    full = {
        name: torch.randn(value.shape, generator=generator).double()
        for name, value in _start().items()
    }
    return items, full, torch.tensor([1.0, float(step % 4 != 2)])


def _learn(
    optimizer: LazyAdam, parameters: dict[str, Tensor], steps: range, rate: Tensor = RATES
) -> None:
    for step in steps:
        items, full, active = _gradients_of(step)
        rows = touched_rows(items)
        gradients = {
            name: pick_rows(value, rows) if name != "loading" else value
            for name, value in full.items()
        }
        optimizer.step(parameters, gradients, rate, active, rows)


def _reference() -> dict[str, Tensor]:
    """Return parameters by a plain loop over runs, rows and steps."""
    parameters = _start()
    for run in range(2):
        for name in ("vectors", "bias"):
            decay = float(DECAYS[run]) if name == "vectors" else 0.0
            for item in range(ITEMS):
                value = parameters[name][run, item]
                first, second = torch.zeros_like(value), torch.zeros_like(value)
                clock = last = moved = 0
                for step in range(STEPS):
                    items, full, active = _gradients_of(step)
                    clock += int(active[run])
                    if not active[run] or item not in items[run]:
                        continue
                    gradient = full[name][run, item] + (clock - last) * decay * value
                    moved, last = moved + 1, clock
                    first = 0.9 * first + 0.1 * gradient
                    second = 0.999 * second + 0.001 * gradient**2
                    size = second / (1 - 0.999**moved)
                    step_by = first / (1 - 0.9**moved) / (size.sqrt() + 1e-8)
                    value -= float(RATES[run]) * step_by
    return parameters


def test_equals_a_plain_loop() -> None:
    parameters, reference = _start(), _reference()
    _learn(_lazy(parameters), parameters, range(STEPS))
    for name in ("vectors", "bias"):
        torch.testing.assert_close(parameters[name], reference[name], atol=1e-6, rtol=1e-6)


def test_rows_that_are_not_read_stay_constant() -> None:
    parameters = _start()
    optimizer = _lazy(parameters)
    for step in range(5):
        before = {name: value.clone() for name, value in parameters.items()}
        _learn(optimizer, parameters, range(step, step + 1))
        items, _, active = _gradients_of(step)
        for run in range(2):
            for item in range(ITEMS):
                moves = bool(active[run]) and item in items[run]
                for name in ("vectors", "bias"):
                    same = torch.equal(parameters[name][run, item], before[name][run, item])
                    assert same == (not moves), (step, run, item, name)


def test_equals_adam_if_every_step_reads_every_row() -> None:
    lazy, dense = _start(), _start()
    optimizers = _lazy(lazy), StackedAdam(dense, DECAYS, ("bias", "loading"))
    for step in range(10):
        _, gradients, active = _gradients_of(step)
        optimizers[0].step(lazy, gradients, RATES, active)
        optimizers[1].step(dense, gradients, RATES, active)
    for name, value in dense.items():
        torch.testing.assert_close(lazy[name], value, atol=1e-12, rtol=1e-12)


def test_resumes_from_its_state() -> None:
    whole, half = _start(), _start()
    _learn(_lazy(whole), whole, range(12))
    first, second = _lazy(half), _lazy(half)
    _learn(first, half, range(7))
    second.load({name: value.clone() for name, value in first.state().items()})
    _learn(second, half, range(7, 12))
    for name, value in whole.items():
        assert torch.equal(half[name], value)


def test_touched_rows_are_unique_and_sorted() -> None:
    rows = touched_rows(torch.tensor([[3, -1, 2, 3], [-1, -1, -1, -1]]))
    assert rows.tolist() == [[2, 3, NOWHERE, NOWHERE], [NOWHERE] * 4]


def _training(
    lab: Make, monkeypatch: pytest.MonkeyPatch, items: int = 9, **settings: Any
) -> tuple[Any, list[Job], TrainingState]:
    """Return a lab that treats every catalogue as large, its runs, and their initial state."""
    monkeypatch.setattr(fitting_module, "SPARSE_FACTOR", 1e-9)
    world = lab(data=random_world(LENGTHS, items=items, seed=1), double=True)
    jobs = [world.job(seed=seed, **settings) for seed in (0, 1)]
    return world, jobs, world.start(jobs)


def test_gradients_of_touched_rows_equal_those_of_the_table(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, jobs, fit_state = _training(lab, monkeypatch, policy="reservoir")
    models = fit_state.models_with(fit_state.parameters())
    trace, _ = TrainingRollouts(jobs, world.columns).traces(1, models, models)
    batch = torch.tensor([[0, 5, 2, -1], [1, 7, -1, -1]])
    batch[1] = torch.where(batch[1] >= 0, batch[1] + trace.run_rows[1], -1)
    rows = touched_rows(items_read(trace, batch))
    losses, dense = recommender_gradients(fit_state.stack, trace, batch)
    again, some = recommender_gradients(fit_state.stack, trace, batch, rows)
    torch.testing.assert_close(again, losses)
    for name, value in dense.items():
        if name not in fit_state.stack.template.item_tables:
            torch.testing.assert_close(some[name], value)
            continue
        there = rows < NOWHERE
        torch.testing.assert_close(some[name][there], pick_rows(value, rows)[there])
        rest = value.clone()
        for run in range(2):
            rest[run, rows[run][there[run]]] = 0.0
        assert not rest.any()  # no other row has a gradient


@pytest.mark.parametrize("policy", ["last", "learned"])
def test_a_stacked_run_equals_the_single_run_and_resumes(
    lab: Make, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    settings = {
        "policy": policy,
        "policy_warmup_epochs": 0,
        "policy_freeze_epochs": 0,
        "batch_size": 5,
        "epochs": 2,
    }
    world, jobs, whole = _training(lab, monkeypatch, **settings)
    assert isinstance(whole.optimizers["items"], LazyAdam)
    saved: list[Any] = []

    def save(fit_state: Any) -> None:
        tensors = {name: value.clone() for name, value in fit_state.tensors().items()}
        saved.append((tensors, type(fit_state.progress)(**vars(fit_state.progress))))

    fit(whole, jobs, world.columns, world.validate, save=save)
    single = world.train(jobs[1:])
    for name, value in single.parameters().items():
        torch.testing.assert_close(whole.parameters()[name][1:], value, atol=1e-9, rtol=1e-9)
    resumed = world.start(jobs)
    resumed.load(*saved[0])
    fit(resumed, jobs, world.columns, world.validate)
    for name, value in whole.tensors().items():
        assert torch.equal(resumed.tensors()[name], value), name


def test_a_training_step_updates_only_the_rows_it_read(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items that no training user has seen keep their initial parameters."""
    world, jobs, fit_state = _training(lab, monkeypatch, items=100, policy="last")
    table = fit_state.stack.state["vectors"]
    before = table.clone()
    fit(fit_state, jobs, world.columns, world.validate)
    for run, job in enumerate(jobs):
        events = [job.train.events(user) for user in range(job.train.users)]
        seen = {int(item) for some in events for item in job.train.item[some]}
        assert 10 < len(seen) < 90
        for item in range(world.data.items):
            same = torch.equal(table[run, item], before[run, item])
            assert same == (item not in seen), (run, item)
            assert bool(before[run, item].any()) == (item in seen)


def test_only_large_catalogues_use_lazy_adam(lab: Make) -> None:
    """Small catalogues, the softmax and whole histories update all rows."""
    world = lab()
    assert isinstance(world.start([world.job()]).optimizers["items"], StackedAdam)
    assert isinstance(world.start([world.job(batch_size=1, size=1)]).optimizers["items"], LazyAdam)
    whole = world.start([world.job(batch_size=1, size=1, policy="all")])
    assert isinstance(whole.optimizers["items"], StackedAdam)
    world.loss = FullSoftmax()
    assert isinstance(
        world.start([world.job(batch_size=1, size=1)]).optimizers["items"], StackedAdam
    )


@pytest.mark.skipif("DIPS_DATA" not in os.environ, reason="real data is not here: set $DIPS_DATA")
def test_accuracy_on_movielens_is_close_to_dense_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation RMSE is within 0.001 of dense updates after the same epochs."""
    data = read_source(open_source(Path(os.environ["DIPS_DATA"]) / "raw" / "ml-100k.zip"))
    config = build_config(flags={"policy": "last", "device": "cpu", "epochs": 4})
    best = []
    for factor in (1e-9, 1e9):
        monkeypatch.setattr(fitting_module, "SPARSE_FACTOR", factor)
        (outcome,) = train_runs([(split(data, config), config)], test=False)
        best.append(min(epoch["valid"] for epoch in outcome.history))
    assert best[0] != best[1]
    assert abs(best[0] - best[1]) < 0.001
