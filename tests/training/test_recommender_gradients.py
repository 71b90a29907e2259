"""Gradients of a batch in chunks equal those of the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.func import functional_call

from dips.evaluation.progressive import evaluate
from dips.kernels import dispatch
from dips.numerics import chunks
from dips.numerics.linearised_descent import item_sums
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.testing import random_world
from dips.training import recommender_gradients as module
from dips.training.lazy_adam import NOWHERE, pick_rows, touched_rows
from dips.training.recommender_gradients import items_read, recommender_gradients, touched_sums
from dips.training.rollouts import TrainingRollouts
from dips.training.state import store_sums

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


def _sampled(lab: Make, runs: int, repeat_feature: bool = True) -> tuple[Any, Any, torch.Tensor]:
    """Return recommenders with stored sums, a trace, and a batch with padding."""
    data = random_world([9, 3, 12, 1, 7, 11, 4, 8, 6, 5], items=40, seed=1, explicit=False)
    world = lab(explicit=False, data=data, double=True, negatives=7)
    world.features["repeat_feature"] = repeat_feature
    jobs = [world.job(seed=seed, policy="last") for seed in range(runs)]
    fit_state = world.start(jobs)
    models = fit_state.models_with(fit_state.parameters())
    trace, _ = TrainingRollouts(jobs, world.columns).traces(1, models, models)
    draw = torch.Generator().manual_seed(1)
    stack = fit_state.stack
    stack.state["negatives"] = torch.randint(40, (runs, 7), generator=draw)  # with duplicates
    stack.state["bias"] += torch.randn(stack.state["bias"].shape, generator=draw)
    store_sums(stack)
    batch = torch.tensor([[0, 5, 2, -1, 9], [1, 7, -1, -1, -1]])[:runs]
    for run in range(runs):
        batch[run] = torch.where(batch[run] >= 0, batch[run] + trace.run_rows[run], -1)
    return stack, trace, batch


@pytest.mark.parametrize("repeat_feature", [False, True])
@pytest.mark.parametrize("runs", [1, 2])
def test_gradients_of_touched_rows_equal_those_of_the_tables(
    lab: Make, runs: int, repeat_feature: bool
) -> None:
    """With sampled negatives, and with the sums over all items stored."""
    stack, trace, batch = _sampled(lab, runs, repeat_feature)
    touched = touched_rows(items_read(trace, batch, stack.state["negatives"]))
    losses, some = recommender_gradients(stack, trace, batch, touched)
    for stored in (True, False):  # the sums are computed if none are stored
        if not stored:
            stack.state["stored_sums"] = stack.state["stored_sums"][..., :0]
        wanted, whole = recommender_gradients(stack, trace, batch)
        torch.testing.assert_close(losses, wanted, atol=1e-12, rtol=1e-12)
        for name, value in whole.items():
            found = some[name]
            if name in stack.template.item_tables:
                there = touched < NOWHERE
                assert 5 < int(there.sum(1).min()) < 40
                found, value = found[there], pick_rows(value, touched)[there]
            assert value.any() or name == "repeat_exponent"  # no item of the batch repeats
            torch.testing.assert_close(found, value, atol=1e-12, rtol=1e-12, msg=name)


def test_a_batch_reads_its_negatives(lab: Make) -> None:
    stack, trace, batch = _sampled(lab, 2)
    negatives = stack.state["negatives"]
    plain, found = items_read(trace, batch), items_read(trace, batch, negatives)
    for run in range(2):
        assert set(found[run].tolist()) == set(plain[run].tolist()) | set(negatives[run].tolist())
        assert set(plain[run].tolist()) < set(found[run].tolist())


@pytest.mark.parametrize("runs", [1, 2])
def test_sums_of_touched_rows_change_as_the_sums_of_all_rows(lab: Make, runs: int) -> None:
    """Rows that are not there add nothing."""
    stack, _, _ = _sampled(lab, runs)
    rows = torch.tensor([[0, 3, 8, NOWHERE, NOWHERE], [2, 39, NOWHERE, NOWHERE, NOWHERE]])[:runs]
    before, part = stack.state["stored_sums"].clone(), touched_sums(stack, rows)
    for run in range(runs):
        there = rows[run][rows[run] < NOWHERE]
        vectors, bias = stack.state["vectors"][run, there], stack.state["bias"][run, there, 0]
        torch.testing.assert_close(part[run], item_sums(vectors, bias))
        stack.state["vectors"][run, there] *= 1.5
        stack.state["bias"][run, there] -= 0.3
    change = touched_sums(stack, rows) - part
    store_sums(stack)
    torch.testing.assert_close(before + change, stack.state["stored_sums"])
    assert float(change.abs().amax((1, 2)).min()) > 1e-3
    nothing = torch.full_like(rows, NOWHERE)
    assert torch.equal(touched_sums(stack, nothing), torch.zeros_like(part))


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


def _filtering(lab: Make, runs: int, form: type[Any], double: bool = True) -> tuple[Any, Any, Any]:
    """Return recommenders that filter seen items, a trace, and a batch with padding."""
    world = lab(explicit=False, double=double)
    world.form, world.features = form, {"recency_decay": True, "tie_embeddings": False}
    jobs = [world.job(seed=seed, policy="last") for seed in range(runs)]
    fit_state = world.start(jobs)
    fit_state.stack.template.masks_seen = True
    draw = torch.Generator().manual_seed(5)
    for name in ("vectors", "bias", "input_offset"):
        value = fit_state.stack.state[name]
        value += torch.randn(value.shape, generator=draw)
    models = fit_state.models_with(fit_state.parameters())
    trace, _ = TrainingRollouts(jobs, world.columns).traces(1, models, models)
    batch = torch.tensor([[0, 5, 2, -1, 9, 11, 3], [1, 7, -1, -1, -1, -1, -1]])[:runs]
    for run in range(runs):
        batch[run] = torch.where(batch[run] >= 0, batch[run] + trace.run_rows[run], -1)
    return fit_state.stack, trace, batch


def _dense_loss(stack: Any, trace: Any, rows: torch.Tensor, run: int, state: Any) -> torch.Tensor:
    """Return the mean loss of one run, one prediction at a time, with an explicit mask."""

    def mean(model: Any) -> torch.Tensor:
        losses = []
        for row in rows[rows >= 0].tolist():
            event, step = int(trace.event[row]), int(trace.step[row])
            user = model.read(trace.evidence(torch.tensor([row])))
            own, gone = int(trace.columns.item[event]), trace.columns.item[event - step : event]
            mask = torch.zeros(model.items, dtype=torch.bool)
            mask[gone] = True
            mask[own] = False
            scores = model.predict_all(user)[0].masked_fill(mask, -torch.inf)
            losses.append(scores.logsumexp(0) - scores[own])
        return torch.stack(losses).mean()

    parameters = {name: value[run].double() for name, value in stack.state.items()} | state
    template = copy.deepcopy(stack.template).double()
    result: torch.Tensor = functional_call(template, parameters, (mean,))
    return result


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("form", [DotProduct, LinearisedDotProduct])
def test_seen_items_are_filtered_from_the_outer_loss(
    lab: Make, monkeypatch: pytest.MonkeyPatch, runs: int, form: type[Any]
) -> None:
    """Loss and gradients equal a dense loop with a mask; in chunks, and in single precision."""
    stack, trace, batch = _filtering(lab, runs, form)
    found = [recommender_gradients(stack, trace, batch)]
    with monkeypatch.context() as patch:
        patch.setitem(chunks.MAX_ELEMENTS, "cpu", 2 * runs * stack.template.elements_per_row)
        found.append(recommender_gradients(stack, trace, batch))
    found.append(recommender_gradients(*_filtering(lab, runs, form, double=False)))
    repeated = 0
    for run in range(runs):
        own = {name: stack.state[name][run].detach().requires_grad_() for name in stack.trainable}
        loss = _dense_loss(stack, trace, batch[run], run, own)
        slopes = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
        for number, (losses, gradients) in enumerate(found):
            close = {"atol": 1e-4, "rtol": 1e-3} if number == 2 else {"atol": 1e-11, "rtol": 1e-9}
            torch.testing.assert_close(losses[run].double(), loss.detach(), **close)
            for name, slope in zip(own, slopes, strict=True):
                torch.testing.assert_close(gradients[name][run].double(), slope, **close, msg=name)
        rows = batch[run][batch[run] >= 0]
        target = trace.columns.item[trace.event[rows]]
        repeated += int((trace.seen_items(rows) == target[:, None]).any(1).sum())
    assert repeated  # a target that was met before is not filtered
    stack.template.masks_seen = False
    plain, _ = recommender_gradients(stack, trace, batch)
    assert bool((plain - found[0][0] > 1e-3).all())


def test_items_that_are_met_later_are_not_filtered(lab: Make) -> None:
    """Other items from an event on change its prediction, and no earlier one."""
    stack, trace, _ = _filtering(lab, 1, LinearisedDotProduct)
    first = int(torch.nonzero(trace.step == 5)[0]) - 5
    rows = torch.arange(first, first + 6)
    before = [recommender_gradients(stack, trace, row.view(1, 1))[0] for row in rows]
    events = trace.event[rows]
    item = trace.columns.item.clone()
    item[events[3]] = (item[events[3]] + 1) % 9
    trace.columns = replace(trace.columns, item=item, token=item)
    after = [recommender_gradients(stack, trace, row.view(1, 1))[0] for row in rows]
    same = [bool(one == other) for one, other in zip(before, after, strict=True)]
    assert same[:3] == [True] * 3
    assert not any(same[3:5])


@pytest.mark.parametrize("runs", [1, 2])
def test_seen_negatives_are_filtered_with_touched_rows(lab: Make, runs: int) -> None:
    """Rows of the item tables are renumbered, and seen items with them."""
    stack, trace, batch = _sampled(lab, runs, repeat_feature=False)
    stack.template.masks_seen = True
    stack.state["negatives"][:, :2] = trace.seen_items(batch.clamp_min(0))[:, 1, :2].clamp_min(0)
    touched = touched_rows(items_read(trace, batch, stack.state["negatives"]))
    losses, some = recommender_gradients(stack, trace, batch, touched)
    wanted, whole = recommender_gradients(stack, trace, batch)
    torch.testing.assert_close(losses, wanted, atol=1e-12, rtol=1e-12)
    there = touched < NOWHERE
    rows = pick_rows(whole["vectors"], touched)[there]
    torch.testing.assert_close(some["vectors"][there], rows, atol=1e-12, rtol=1e-12)
    stack.template.masks_seen = False
    assert bool((recommender_gradients(stack, trace, batch)[0] > losses + 1e-6).any())
