"""Cross-fitting: auxiliary recommenders give the credit for users to whom they are not fitted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dips.training.batches import FullHistoryBlock
from dips.training.policy_batches import user_half
from dips.training.rollouts import TrainingRollouts, with_auxiliary

from .conftest import Lab

SETTINGS = {"policy": "learned", "cross_fitting": True, "policy_warmup_epochs": 0}


def _block(lab: Lab, jobs: list[Any]) -> tuple[TrainingRollouts, FullHistoryBlock]:
    started = lab.start(jobs)
    rollouts = TrainingRollouts(jobs, lab.columns)
    models = started.models_with(started.parameters())
    training, _ = rollouts.traces(1, models, models)
    assert training is not None
    block = rollouts.block(training, started.stack.template)
    assert isinstance(block, FullHistoryBlock)
    return rollouts, block


def _users(block: FullHistoryBlock, run: int, rows: torch.Tensor) -> set[int]:
    return set(block.trace.user[rows[run][rows[run] >= 0]].tolist())


def test_each_user_is_fitted_by_one_auxiliary_run_and_gets_credit_from_the_other(
    lab: Any,
) -> None:
    world = lab()
    jobs = with_auxiliary([world.job(**SETTINGS, seed=2)])
    halves = [job.half for job in jobs]
    assert halves == [None, 0, 1]
    seeds = [job.config.training.training_seed for job in jobs]
    rollouts, block = _block(world, jobs)
    batches = torch.cat(list(block.batches(seeds, 1, 16, halves)), 1)
    packed = block.policy_batches(rollouts.refresh_table, seeds, 1, jobs[0].config, halves)
    predicted = torch.cat([policy_batch.predicted for policy_batch in packed], 1)
    everyone = set(block.trace.user[: block.trace.run_rows[1]].tolist())
    half = user_half(torch.arange(len(everyone)), seeds[0])
    first = {user for user in everyone if int(half[user]) == 0}
    assert first
    assert first != everyone
    assert [_users(block, run, batches) for run in range(3)] == [everyone, first, everyone - first]
    assert [_users(block, run, predicted) for run in range(3)] == [set(), everyone - first, first]


def test_a_run_and_its_auxiliary_runs_share_the_policy(lab: Any) -> None:
    world = lab()
    jobs = with_auxiliary([world.job(**SETTINGS, seed=seed) for seed in (0, 1)])
    assert len(jobs) == 6
    found = world.train(jobs)
    start = world.start(jobs)
    for name, value in found.policies.state.items():
        assert torch.equal(value[0], value[1]), name
        assert torch.equal(value[0], value[2]), name
        assert torch.equal(value[3], value[5]), name
    moved = found.policies.state["direct"] - start.policies.state["direct"]
    assert moved[0].abs().max() > 0
    assert not torch.equal(moved[0], moved[3])
    bias = found.stack.state["bias"]  # the recommenders differ: they are fitted to other users
    assert not torch.equal(bias[0], bias[1])
    assert not torch.equal(bias[1], bias[2])


@pytest.mark.parametrize("seed", [0, 1])
def test_the_main_recommender_does_not_depend_on_the_auxiliary_ones(lab: Any, seed: int) -> None:
    """While the policy does not move, the main run equals a run without cross-fitting."""
    world = lab()
    job = world.job(**{**SETTINGS, "policy_lr": 0.0}, seed=seed)
    alone = world.train([job])
    found = world.train(with_auxiliary([job]))
    for name, value in alone.best.items():
        if name.startswith("recommender."):
            torch.testing.assert_close(found.best[name][0], value[0], atol=1e-5, rtol=1e-4)


def test_without_auxiliary_runs_a_state_has_the_main_runs_only(lab: Any) -> None:
    world = lab()
    jobs = with_auxiliary([world.job(**SETTINGS, seed=seed) for seed in (0, 1)])
    found = world.train(jobs)
    main = found.select([0, 3])
    assert main.stack.runs == 2
    assert len(main.progress.best) == 2
    assert main.progress.best == [found.progress.best[0], found.progress.best[3]]
    assert [len(line["valid"]) for line in main.progress.history] == [2] * 3
    assert torch.equal(main.best["policy.direct"][1], found.best["policy.direct"][3])
    assert len(found.progress.best) == 6


def test_losses_of_auxiliary_runs_are_means_over_their_half(lab: Any) -> None:
    world = lab()
    found = world.train(with_auxiliary([world.job(**SETTINGS, seed=1)]))
    losses = found.progress.history[0]["train_loss"]
    assert all(0.7 < loss / losses[0] < 1.4 for loss in losses)


def test_the_policy_is_reverted_for_all_runs_where_the_main_run_is_worse(lab: Any) -> None:
    world = lab()
    changed = {"revert_tolerance": 0.01, "policy_freeze_epochs": 0}
    jobs = with_auxiliary([world.job(**SETTINGS, **changed, seed=1)])
    start = world.start(jobs).policies.state["direct"]
    scores = iter([[1.0, 1.0, 1.0], [9.0, 0.5, 0.5], [9.0, 0.5, 0.5], [9.0, 0.5, 0.5]])
    found = world.start(jobs)
    world.fit(found, jobs, validate=lambda stack, trace: next(scores))
    moved = found.policies.state["direct"]
    assert not torch.equal(moved[0], start[0])  # the first epoch stays
    assert torch.equal(moved[0], moved[1])
    assert torch.equal(moved[0], moved[2])
    assert len(set(found.progress.policy_lr_scale)) == 1
