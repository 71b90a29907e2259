"""Gradients of a batch in chunks equal those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dips.evaluation.progressive import evaluate
from dips.kernels import dispatch
from dips.numerics import chunks
from dips.training import recommender_gradients as module
from dips.training.recommender_gradients import recommender_gradients
from dips.training.rollouts import TrainingRollouts

Make = Callable[..., Any]


@pytest.mark.parametrize("runs", [1, 2])
def test_chunks_of_a_batch_add_up(lab: Make, monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """Also if some chunks of a run are padding only."""
    world = lab(explicit=False, double=True)
    jobs = [world.job(seed=seed, policy="last") for seed in range(runs)]
    fit_state = world.start(jobs)
    models = fit_state.models_with(fit_state.parameters())
    trace, _ = TrainingRollouts(jobs, world.columns).traces(1, models, models)
    batch = torch.tensor([[0, 5, 2, -1, 9, 11, 3], [1, 7, -1, -1, -1, -1, -1]])[:runs]
    for run in range(runs):
        batch[run] = torch.where(batch[run] >= 0, batch[run] + trace.run_rows[run], -1)
    losses, gradients = recommender_gradients(fit_state.stack, trace, batch)
    monkeypatch.setitem(
        chunks.MAX_ELEMENTS, "cpu", 3 * runs * fit_state.stack.template.elements_per_row
    )
    widths, split = [], chunks.split_into_chunks

    def watched(tensors: Any, breadth: int, axis: int) -> Any:
        for chunk in split(tensors, breadth, axis):
            widths.append(chunk[-1].shape[1])
            yield chunk

    monkeypatch.setattr(module, "split_into_chunks", watched)
    again, summed = recommender_gradients(fit_state.stack, trace, batch)
    assert widths == [3, 3, 1]
    torch.testing.assert_close(again, losses, atol=1e-12, rtol=1e-12)
    for name, value in gradients.items():
        assert value.any()
        torch.testing.assert_close(summed[name], value, atol=1e-12, rtol=1e-12, msg=name)


@pytest.mark.parametrize("runs", [1, 2])
def test_compiled_path_equals_the_reference(
    lab: Make, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    """In training and in evaluation, up to the rounding of float32."""
    pytest.importorskip("numba")
    world = lab(explicit=False)
    jobs = [world.job(seed=seed, policy="last") for seed in range(runs)]
    fit_state = world.start(jobs)
    models = fit_state.models_with(fit_state.parameters())
    trace, _ = TrainingRollouts(jobs, world.columns).traces(1, models, models)
    batch = torch.tensor([[0, 5, 2, -1, 9], [1, 7, -1, -1, -1]])[:runs]
    for run in range(runs):
        batch[run] = torch.where(batch[run] >= 0, batch[run] + trace.run_rows[run], -1)
    called, total_loss = [], module.total_loss
    monkeypatch.setattr(module, "total_loss", lambda *a: called.append(1) or total_loss(*a))
    losses, gradients = recommender_gradients(fit_state.stack, trace, batch)
    scores = evaluate(fit_state.stack, trace)
    assert called
    monkeypatch.setattr(dispatch, "installed", lambda _: False)
    wanted, plain = recommender_gradients(fit_state.stack, trace, batch)
    torch.testing.assert_close(losses, wanted)
    for name, value in plain.items():
        assert value.any()
        torch.testing.assert_close(gradients[name], value, atol=1e-5, rtol=1e-4, msg=name)
    for found, slow in zip(scores, evaluate(fit_state.stack, trace), strict=True):
        assert found.metrics == pytest.approx(slow.metrics)
