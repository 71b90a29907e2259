"""Two processes with half of the users each take the same steps as one process with all users.

The processes communicate over gloo. One launch of this file as a script runs all cases. They run in
float64, where only the order of summation differs. The tolerance of 1e-9 is far above that, and far
below the change from one prediction that is missing or counted twice.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.evaluation.progressive import evaluate
from dips.numerics.process_group import ProcessGroup, open_process_group
from dips.stream.users import make_stream
from dips.testing import random_world
from dips.training.distributed import RankPartition
from dips.training.state import TrainingState
from dips.training.trainer import fit

TOLERANCE = 1e-9
QUICK: dict[str, Any] = {
    "policy_warmup_epochs": 0,
    "policy_freeze_epochs": 0,
    "policy_lr": 0.01,
    "epochs": 3,
}
LEARNED: dict[str, Any] = {"policy": "learned", "policy_batch_size": 24}
CASES: dict[str, list[dict[str, Any]]] = {
    "last": [{"policy": "last"}],
    "several-runs": [{"policy": "reservoir", "seed": 1}, {"policy": "reservoir", "seed": 2}],
    "several-policies": [{"policy": "last"}, {"policy": "frequent"}],
    "hardest": [{"policy": "hardest", "resketch_epochs": 2}],
    "learned": [LEARNED],
    "learned-every-3": [{**LEARNED, "periods": (3,), "seed": 1}, {**LEARNED, "periods": (3,)}],
    "revert": [{**LEARNED, "policy_lr": 0.5, "revert_tolerance": 1e-4, "epochs": 5}],
    "user_batches": [{**LEARNED, "user_batch": 3}],
    "dips-steps": [
        {"policy": "dips", "user_batch": 5, "update_interval": 1, "user_lr": 0.01, "epochs": 2}
    ],
    "update_interval-in-batches": [
        {"policy": "hardest", "user_batch": 4, "update_interval": 3, "batch_size": 5}
    ],
    "all": [{"policy": "all"}],
    "all-steps": [{"policy": "all", "update_interval": 2, "user_batch": 3}],
}
Found = tuple[dict[str, Tensor], dict[str, Any]]


class Stop(Exception):
    """Raised to interrupt a run."""


def _train(
    world: Any, jobs: Any, process_group: ProcessGroup, fit_state: TrainingState, stop_at: int = 0
) -> tuple[Found, Found | None]:
    """Return parameters and history of a fit, and its checkpoint of epoch `stop_at`."""
    saved: list[Found] = []

    def validate(stack: Any, trace: Any) -> list[float]:
        found = evaluate(stack, trace, low=1.0, high=5.0, process_group=process_group)
        return [scores.objective for scores in found]

    def save(fit_state: TrainingState) -> None:
        if fit_state.progress.epoch == stop_at:
            tensors = {name: value.clone() for name, value in fit_state.tensors().items()}
            saved.append((tensors, copy.deepcopy(vars(fit_state.progress))))
            raise Stop

    fit_state.synchronise(process_group)
    with suppress(Stop):
        fit(fit_state, jobs, world.columns, validate, save=save, process_group=process_group)
    left = {name: value.clone() for name, value in fit_state.tensors().items()}
    return (left, vars(fit_state.progress)), saved[0] if saved else None


def _case(make: Any, name: str, process_group: ProcessGroup) -> Found:
    world = make(double=True)
    jobs = [world.job(**{**QUICK, **settings}) for settings in CASES[name]]
    return _train(world, jobs, process_group, world.start(jobs))[0]


def _implicit(make: Any, process_group: ProcessGroup) -> Found:
    world = make(explicit=False, double=True)
    jobs = [world.job(**QUICK, **LEARNED)]
    return _train(world, jobs, process_group, world.start(jobs))[0]


def _many_items(make: Any, process_group: ProcessGroup) -> Found:
    """Train with so many items that a step updates only the rows it reads."""
    world = make(data=random_world([9, 3, 12, 7, 11, 4, 8, 6, 9, 7, 5], items=500), double=True)
    jobs = [world.job(**QUICK, **LEARNED)]
    return _train(world, jobs, process_group, world.start(jobs))[0]


def _sampled(make: Any, process_group: ProcessGroup) -> Found:
    """Train with sampled negatives and sums over all items that are kept up to date."""
    lengths = [9, 3, 12, 7, 11, 4, 8, 6, 9, 7, 5]
    data = random_world(lengths, items=500, explicit=False)
    world = make(explicit=False, data=data, double=True, negatives=20)
    jobs = [world.job(**QUICK, **LEARNED)]
    fit_state = world.start(jobs)
    assert fit_state.stack.state["stored_sums"].numel()
    return _train(world, jobs, process_group, fit_state)[0]


def _resumed(make: Any, process_group: ProcessGroup) -> Found:
    """Stop after the first epoch and resume. Only the main process has the checkpoint."""
    world = make(double=True)
    jobs = [world.job(**QUICK, **LEARNED)]
    _, saved = _train(world, jobs, process_group, world.start(jobs), stop_at=1)
    fit_state = world.start(jobs)
    if process_group.is_main:
        assert saved is not None
        fit_state.load(saved[0], type(fit_state.progress)(**saved[1]))
    else:
        for value in fit_state.tensors().values():
            value += 1  # is overwritten by the value of the main process
    return _train(world, jobs, process_group, fit_state)[0]


OTHERS: dict[str, Callable[[Any, ProcessGroup], Found]] = {
    "implicit": _implicit, "many-items": _many_items, "sampled": _sampled, "resumed": _resumed
}  # fmt: skip


def _any_case(make: Any, name: str, process_group: ProcessGroup) -> Found:
    return _case(make, name, process_group) if name in CASES else OTHERS[name](make, process_group)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    """Return the results of each of two processes."""
    folder = tmp_path_factory.mktemp("together")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, __file__, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_two_processes_equal_one_process(
    lab: Callable[..., Any], together: list[dict[str, Found]], name: str
) -> None:
    """Compare parameters, optimizers and validation. Both processes agree exactly."""
    with open_process_group("cpu") as process_group:
        tensors, progress = _any_case(lab, name, process_group)
    first, second = (found[name] for found in together)
    for key, expected in tensors.items():
        assert torch.equal(first[0][key], second[0][key]), key
        torch.testing.assert_close(first[0][key], expected, rtol=0, atol=TOLERANCE, msg=key)
    assert len(first[1]["history"]) == progress["epoch"] > 1
    for line, expected in zip(first[1]["history"], progress["history"], strict=True):
        assert line["valid"] == pytest.approx(expected["valid"], abs=TOLERANCE)
        assert line["train_loss"] == pytest.approx(expected["train_loss"], abs=TOLERANCE)
    assert (
        first[1]["policy_lr_scale"] == second[1]["policy_lr_scale"] == progress["policy_lr_scale"]
    )
    assert first[1]["best_epoch"] == second[1]["best_epoch"] == progress["best_epoch"]
    assert first[1]["seconds"] == second[1]["seconds"]


def test_the_revert_case_reverts_updates(together: list[dict[str, Found]]) -> None:
    assert together[0]["revert"][1]["policy_lr_scale"][0] < 1


def test_every_user_belongs_to_one_process(lab: Callable[..., Any]) -> None:
    world = lab()
    jobs = [world.job(seed=seed) for seed in (0, 1)]
    stream = make_stream([job.train for job in jobs], world.columns)
    shares = [RankPartition(rank, 3).local_users(stream).user for rank in range(3)]
    for run, job in enumerate(jobs):
        users = torch.cat([share[run][share[run] >= 0] for share in shares])
        assert sorted(users.tolist()) == list(range(job.train.users))


def test_a_process_without_users_gets_a_placeholder(lab: Callable[..., Any]) -> None:
    world = lab()
    stream = make_stream([world.data.select([0, 1])], world.columns)
    assert RankPartition(2, 3).local_users(stream).length.tolist() == [[stream.longest]]


def _lab() -> Any:
    """Return the class of the fixture `lab`."""
    spec = importlib.util.spec_from_file_location("lab", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Lab


if __name__ == "__main__":
    with open_process_group("cpu") as here:
        found = {name: _any_case(_lab(), name, here) for name in [*CASES, *OTHERS]}
        torch.save(found, Path(sys.argv[1]) / f"{here.rank}.pt")
