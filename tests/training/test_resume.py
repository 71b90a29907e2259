"""A resumed run equals the uninterrupted run. A diverged run reports the reason."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dips.training import checkpoint, epoch, trainer
from dips.training import state as state_module
from dips.training.state import TrainingState
from dips.training.trainer import fit

Make = Callable[..., Any]
QUICK: dict[str, Any] = {
    "policy_warmup_epochs": 0,
    "policy_freeze_epochs": 0,
    "policy_lr": 0.01,
    "epochs": 3,
    "batch_size": 16,
    "policy_batch_size": 24,
}
RUNS: dict[str, dict[str, Any]] = {
    "last": {"policy": "last"},
    "hardest": {"policy": "hardest"},
    "reservoir-user_batches": {"policy": "reservoir", "user_batch": 4},
    "learned": {"policy": "learned"},
    "learned-resketch": {"policy": "learned", "resketch_epochs": 2, "epochs": 4, "policy_lr": 0.5},
    "sampled-resketch": {
        "policy": "hardest",
        "resketch_epochs": 3,
        "selection": "sampled",
        "epochs": 5,
    },
    "learned-user_batches": {"policy": "learned", "user_batch": 3},
    "dips-steps": {
        "policy": "dips",
        "user_batch": 5,
        "update_interval": 1,
        "user_lr": 0.01,
        "epochs": 2,
    },
    "hardest-update_interval": {"policy": "hardest", "user_batch": 3, "update_interval": 3},
}


class Stop(Exception):
    """Raised to interrupt a run."""


def _stopped(
    world: Any, jobs: Any, at: int | tuple[int, int]
) -> tuple[dict[str, torch.Tensor], Any] | None:
    """Return the checkpoint of a run that is interrupted after its save number `at`.

    Or after the first save with this epoch and number of user batches.
    """
    saved: list[tuple[dict[str, torch.Tensor], Any]] = []

    def save(fit_state: TrainingState) -> None:
        tensors = {name: value.clone() for name, value in fit_state.tensors().items()}
        saved.append((tensors, copy.deepcopy(fit_state.progress)))
        if at in (len(saved), (fit_state.progress.epoch, fit_state.progress.user_batches_done)):
            raise Stop

    try:
        world.train(jobs, save=save)
    except Stop:
        return saved[-1]
    return None


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_a_resumed_run_equals_the_uninterrupted_run(
    lab: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Exactly, from checkpoints after epochs, after user batches and after batches."""
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    world = lab()
    jobs = [world.job(seed=seed, **{**QUICK, **settings}) for seed in (0, 1)]
    places: list[tuple[int, int, int]] = []

    def save(fit_state: TrainingState) -> None:
        done = fit_state.progress
        places.append((done.epoch, done.user_batches_done, done.batches_done))

    whole = world.train(jobs, save=save)
    epochs = jobs[0].config.training.epochs
    user_batches = 0
    if settings.get("user_batch"):
        user_batches = -(-max(job.train.users for job in jobs) // settings["user_batch"])
    assert [place[:2] for place in places if not place[2]] == [
        (number, done % max(1, user_batches))
        for number in range(1, epochs + 1)
        for done in range(1, max(1, user_batches) + 1)
    ]
    assert any(place[2] for place in places) != bool(settings.get("update_interval"))
    for at in {1, 2, len(places) // 3, len(places) // 2, len(places) - 2, len(places) - 1}:
        left = _stopped(world, jobs, at)
        assert left is not None
        resumed = world.start(jobs)
        resumed.load(*left)
        fit(resumed, jobs, world.columns, world.validate)
        for name, value in whole.tensors().items():
            assert torch.equal(resumed.tensors()[name], value), (at, name)
        assert resumed.progress.history == whole.progress.history
        assert resumed.progress.best_epoch == whole.progress.best_epoch
        assert resumed.progress.user_batches_done == resumed.progress.batches_done == 0


@pytest.mark.parametrize("sparse", [True, False])
def test_a_resumed_run_draws_the_same_negatives(
    lab: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sparse: bool
) -> None:
    """Exactly, within an epoch and after one; with and without stored sums over all items."""
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(state_module, "SPARSE_FACTOR", 1e-9 if sparse else 1e9)
    world = lab(explicit=False, negatives=4)
    settings = {**QUICK, "policy": "last", "user_batch": 4, "epochs": 2}
    jobs = [world.job(seed=seed, **settings) for seed in (0, 1)]
    whole = world.train(jobs)
    assert bool(whole.stack.state["stored_sums"].numel()) == sparse
    for at in (2, (1, 2), (2, 0)):
        left = _stopped(world, jobs, at)
        assert left is not None
        stopped = world.start(jobs)
        stopped.load(*left)
        stopped.progress.epoch += bool(stopped.progress.predictions)
        checkpoint.save(stopped, tmp_path)
        resumed = world.start(jobs)
        assert checkpoint.load(resumed, tmp_path)
        fit(resumed, jobs, world.columns, world.validate)
        for name, value in whole.tensors().items():
            assert torch.equal(resumed.tensors()[name], value), (at, name)


def test_patience_is_not_counted_twice(lab: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished epoch does not count as one without improvement."""
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    world = lab()
    jobs = [world.job(user_batch=3, epochs=4, patience=1)]
    left = _stopped(world, jobs, (2, 2))  # in the second epoch, before its validation
    assert left is not None
    resumed = world.start(jobs)
    left[1].best_epoch = [1]
    resumed.load(*left)
    fit(resumed, jobs, world.columns, world.validate)
    assert resumed.progress.epoch >= 2
    assert len(resumed.progress.history) >= 2


def test_a_checkpoint_holds_the_position_in_the_epoch(
    lab: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    world = lab()
    jobs = [world.job(user_batch=3, update_interval=2)]
    left = _stopped(world, jobs, 2)
    assert left is not None
    fit_state = world.start(jobs)
    fit_state.load(*copy.deepcopy(left))
    fit_state.progress.epoch += 1  # as in the interrupted run
    checkpoint.save(fit_state, tmp_path)
    other = world.start(jobs)
    assert checkpoint.load(other, tmp_path)
    assert other.progress.user_batches_done == 2
    assert other.progress.predictions == left[1].predictions
    assert other.progress.loss_sums == left[1].loss_sums
    assert other.progress.epoch == 0  # it resumes in the first epoch
    assert 0 < other.progress.predictions[0] < len(jobs[0].train)


def test_checkpoints_within_an_epoch_are_limited(lab: Make) -> None:
    """At most one per 30 seconds within an epoch."""
    world = lab()
    assert trainer.SAVE_SECONDS == 30
    for settings in ({}, {"user_batch": 2}, {"user_batch": 2, "update_interval": 1}):
        saves: list[int] = []
        world.train(
            [world.job(**settings)], save=lambda f, s=saves: s.append(f.progress.user_batches_done)
        )
        assert saves == [0, 0, 0]


@pytest.mark.parametrize(
    "settings", [{}, {"update_interval": 1}, {"user_batch": 3}], ids=["whole", "steps", "users"]
)
def test_a_run_that_diverges_ends_early(
    lab: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """The message names the step, the learning rates, and the setting to lower first."""
    monkeypatch.setattr(epoch, "CHECK_STEPS", 4)
    world = lab()
    job = world.job(
        policy="learned", inner_lr=1e8, policy_warmup_epochs=0, batch_size=4, epochs=9, **settings
    )
    fit_state = world.train([job])
    (text,) = fit_state.progress.diverged
    assert "the loss was not finite in epoch 1 (step " in text
    assert "learning_rate 0.03, policy_lr 0.003, inner_lr 1e+08" in text
    assert "lower inner_lr first, then learning_rate, then policy_lr" in text
    assert fit_state.progress.epoch == 1
    assert fit_state.progress.history == []
    assert int(fit_state.steps[0]) < len(job.train) / 4 / 2


def test_a_policy_that_diverges_is_reported(lab: Make) -> None:
    """Losses stay finite although scores of the policy are not."""
    world = lab()
    jobs = [
        world.job(policy="learned", policy_lr=rate, policy_warmup_epochs=0, seed=seed)
        for seed, rate in enumerate((0.001, 1e39))
    ]
    fit_state = world.train(jobs)
    good, bad = fit_state.progress.diverged
    assert good == ""
    assert "the policy was not finite in epoch" in bad
    assert "policy_lr 1e+39" in bad
    assert bad.endswith("lower policy_lr first")
    single = world.train(jobs[:1])
    scores = [[line["valid"][0] for line in one.progress.history] for one in (fit_state, single)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    assert all(math.isfinite(score) for score in scores[0])


def test_a_diverged_run_stops_and_the_others_continue(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch, "CHECK_STEPS", 2)
    world = lab()
    jobs = [world.job(seed=0, batch_size=8), world.job(seed=1, batch_size=8, inner_lr=1e8)]
    fit_state = world.train(jobs)
    single = world.train(jobs[:1])
    assert fit_state.progress.diverged[0] == ""
    assert "step " in fit_state.progress.diverged[1]
    assert int(fit_state.steps[1]) <= 4
    assert int(fit_state.steps[0]) == int(single.steps[0])
