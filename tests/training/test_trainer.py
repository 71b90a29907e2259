"""Training loop: stacked, resumed and diverged runs, patience, time limit and schedules."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from dips.rollout.trace import Trace
from dips.training.batches import FullHistoryBlock
from dips.training.trainer import TrainingState, fit

Make = Callable[..., Any]


def _valid(fit_state: TrainingState, run: int) -> list[float]:
    return [line["valid"][run] for line in fit_state.progress.history]


@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "implicit"])
@pytest.mark.parametrize("policy", ["last", "reservoir", "hardest", "all"])
def test_a_stacked_run_equals_the_single_run(lab: Make, policy: str, explicit: bool) -> None:
    world = lab(explicit)
    settings = [
        {"seed": 0, "inner_lr": 0.1},
        {"seed": 1, "inner_lr": 0.05, "weight_decay": 0.1},
        {"seed": 2, "learning_rate": 0.01},
    ]
    jobs = [world.job(policy=policy, **each) for each in settings]
    assert len({len(job.train) for job in jobs}) > 1
    stacked = world.train(jobs)
    for run, job in enumerate(jobs):
        single = world.train([job])
        assert _valid(stacked, run) == pytest.approx(_valid(single, 0), abs=1e-5)
        assert stacked.progress.best_epoch[run] == single.progress.best_epoch[0]
        losses = [line["train_loss"][run] for line in stacked.progress.history]
        other = [line["train_loss"][0] for line in single.progress.history]
        assert losses == pytest.approx(other, abs=1e-5)
        for name, value in single.best.items():
            torch.testing.assert_close(stacked.best[name][run], value[0], atol=1e-4, rtol=1e-4)


def test_runs_of_different_policies_are_stacked(lab: Make) -> None:
    world = lab()
    jobs = [world.job(policy=policy) for policy in ("last", "reservoir", "hardest")]
    jobs.append(world.job(policy="last", size=3))
    stacked = world.train(jobs)
    for run, job in enumerate(jobs):
        assert _valid(stacked, run) == pytest.approx(_valid(world.train([job]), 0), abs=1e-5)
    with pytest.raises(TypeError, match="cannot share a stack"):
        world.train([world.job(policy="last"), world.job(policy="all")])


def test_training_lowers_the_loss(lab: Make) -> None:
    """All users rate item 0 high and item 8 low."""
    world = lab()
    data = world.data
    data.rating[:] = 5 - data.item / 2
    fit_state = world.train(
        [world.job(epochs=12, batch_size=8, learning_rate=0.1, weight_decay=0.0)]
    )
    losses = [line["train_loss"][0] for line in fit_state.progress.history]
    assert losses[-1] < 0.65 * losses[0]
    assert fit_state.progress.best[0] == min(_valid(fit_state, 0))


@pytest.mark.parametrize("policy", ["last", "reservoir"])
def test_equal_seeds_give_equal_results(lab: Make, policy: str) -> None:
    world = lab()
    one, two = (world.train([world.job(policy=policy, seed=3)]) for _ in range(2))
    for name, value in one.stack.state.items():
        assert torch.equal(two.stack.state[name], value)
    assert one.progress.history == two.progress.history
    other = world.train([world.job(policy=policy, seed=4)])
    assert not torch.equal(other.stack.state["bias"], one.stack.state["bias"])


def test_reservoir_samples_again_each_epoch_but_validates_on_one_sample(lab: Make) -> None:
    world = lab()
    seen: list[torch.Tensor] = []

    def validate(stack: Any, trace: Trace) -> list[float]:
        seen.append(trace.sketches(torch.arange(len(trace.event))))
        return world.validate(stack, trace)

    world.train([world.job(policy="reservoir")], validate=validate)
    assert len(seen) == 3
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


@pytest.mark.parametrize("policy", ["last", "reservoir", "hardest", "all"])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_run_equals_the_uninterrupted_run(lab: Make, policy: str, cut: int) -> None:
    """Exactly, from the tensors and the progress of a checkpoint."""
    world = lab()
    jobs = [world.job(policy=policy, epochs=5, seed=seed) for seed in (0, 1)]
    whole = world.train(jobs)
    saved: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def interrupt(fit_state: TrainingState) -> None:
        if fit_state.progress.epoch == cut:
            saved["tensors"] = {name: value.clone() for name, value in fit_state.tensors().items()}
            saved["progress"] = copy.deepcopy(fit_state.progress)
            raise Stop

    with pytest.raises(Stop):
        world.train(jobs, on_epoch=interrupt)
    resumed = world.start(jobs)
    resumed.load(saved["tensors"], saved["progress"])
    fit(resumed, jobs, world.columns, world.validate)
    for name, value in whole.tensors().items():
        assert torch.equal(resumed.tensors()[name], value), name
    assert resumed.progress.history == whole.progress.history
    assert resumed.progress.best_epoch == whole.progress.best_epoch


def test_a_diverged_run_names_step_and_fix_and_the_others_continue(lab: Make) -> None:
    world = lab()
    good = world.job(seed=0)
    jobs = [good, world.job(seed=1, inner_lr=1e6)]
    fit_state = world.train(jobs)
    text = fit_state.progress.diverged[1]
    assert "not finite in epoch 1" in text
    assert "inner_lr 1e+06" in text
    assert "learning_rate 0.03" in text
    assert "step " in text
    assert "lower inner_lr first" in text
    assert fit_state.progress.diverged[0] == ""
    single = world.train([good])
    assert _valid(fit_state, 0) == pytest.approx(_valid(single, 0), abs=1e-5)
    stopped = world.train([jobs[1]])
    assert stopped.progress.epoch == 1  # no run is left to train


def _scripted(scores: dict[int, list[float]]) -> Callable[..., list[float]]:
    """Return a validation function with given scores per run and epoch."""
    calls = {"epoch": 0}

    def validate(stack: Any, trace: Trace) -> list[float]:
        epoch = calls["epoch"]
        calls["epoch"] += 1
        return [scores[run][epoch] for run in range(stack.runs)]

    return validate


def test_training_stops_after_epochs_without_improvement(lab: Make) -> None:
    world = lab()
    scores = {0: [3.0, 2.0, 2.5, 2.0, 9.0, 1.0, 1.0, 1.0]}
    states: list[torch.Tensor] = []
    fit_state = world.train(
        [world.job(epochs=8, patience=2)],
        validate=_scripted(scores),
        on_epoch=lambda fit_state: states.append(fit_state.stack.state["bias"].clone()),
    )
    assert fit_state.progress.epoch == 4  # 2.5 and 2.0 are no better than 2.0
    assert (fit_state.progress.best, fit_state.progress.best_epoch) == ([2.0], [2])
    assert torch.equal(fit_state.best["recommender.bias"], states[1])
    assert not torch.equal(fit_state.best["recommender.bias"], fit_state.stack.state["bias"])


def test_a_run_that_stopped_early_is_not_changed_by_its_stack(lab: Make) -> None:
    """Its later scores do not count while other runs of the stack are trained."""
    world = lab()
    scores = {0: [2.0, 3.0, 3.0, 1.0, 1.0, 1.0], 1: [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]}
    jobs = [world.job(epochs=6, patience=2, seed=seed) for seed in (0, 1)]
    fit_state = world.train(jobs, validate=_scripted(scores))
    assert fit_state.progress.epoch == 6
    assert fit_state.progress.best == [2.0, 1.0]
    assert fit_state.progress.best_epoch == [1, 6]


def test_training_stops_at_the_time_limit(lab: Make) -> None:
    fit_state = (world := lab()).train([world.job(epochs=50, max_seconds=1e-9)])
    assert fit_state.progress.epoch == 1
    assert math.isfinite(fit_state.progress.best[0])


def test_the_learning_rate_follows_a_cosine(lab: Make) -> None:
    """Parameters change less in the last epochs than in the first."""
    world = lab()
    bias: list[torch.Tensor] = []

    def watch(fit_state: TrainingState) -> None:
        bias.append(fit_state.stack.state["bias"].clone())

    world.train([world.job(epochs=12)], on_epoch=watch)
    moves = [float((b - a).abs().mean()) for a, b in pairwise(bias)]
    assert moves[-1] < 0.2 * moves[0]


@pytest.mark.parametrize("policy", ["last", "all"])
def test_every_prediction_is_used_once_per_epoch(
    lab: Make, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab()
    jobs = [world.job(policy=policy, seed=seed, epochs=2, batch_size=8) for seed in (0, 1, 2)]
    orders: list[torch.Tensor] = []
    plain = FullHistoryBlock.batches

    def spy(block: FullHistoryBlock, *rest: Any) -> Sequence[torch.Tensor]:
        trace, batches = block.trace, plain(block, *rest)
        rows = torch.cat(list(batches), 1)
        orders.append(rows)
        for run in range(trace.runs):
            first, last = trace.run_rows[run], trace.run_rows[run + 1]
            count = -(-(last - first) // 8)
            used = rows[run, : count * 8]  # later batches of this run are not active
            assert sorted(used[used >= 0].tolist()) == list(range(first, last))
        return batches

    monkeypatch.setattr(FullHistoryBlock, "batches", spy)
    world.train(jobs)
    assert not torch.equal(orders[0], orders[1])
