"""Negatives are sampled by popularity in strata, as a function of seed and step.

Weighted by their expected counts, they give unbiased estimates of sums over all items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.recommender.gru import GRU
from dips.recommender.losses import FullSoftmax, Loss, SampledSoftmax
from dips.recommender.memory_based import popularity
from dips.testing import random_world
from dips.training.negative_sampling import NegativeSampler

Make = Callable[..., Any]
CPU = torch.device("cpu")


def _drawn(jobs: list[Any], step: int, width: int = 3) -> Tensor:
    return _state(jobs, step, width)["negatives"]


def _state(jobs: list[Any], step: int, width: int) -> dict[str, Tensor]:
    state = {
        "negatives": torch.full((len(jobs), width), -1),
        "log_q": torch.full((len(jobs), width), torch.nan),
    }
    steps = torch.full((len(jobs),), step, dtype=torch.float64)
    NegativeSampler(jobs, CPU).draw(state, steps, torch.ones(len(jobs)))
    return state


def test_negatives_are_a_function_of_seed_and_step(lab: Make) -> None:
    world = lab(explicit=False)
    jobs = [world.job(seed=seed) for seed in (0, 1)]
    both = _drawn(jobs, 5)
    assert torch.equal(both, _drawn(jobs, 5))
    assert torch.equal(both[1:], _drawn(jobs[1:], 5))  # a single run equals the stacked run
    later = [_drawn(jobs, step) for step in range(6, 12)]
    assert not any(torch.equal(both, other) for other in later)
    assert not any(torch.equal(other[0], other[1]) for other in (both, *later))


def test_inactive_runs_keep_their_negatives(lab: Make) -> None:
    jobs = [lab(explicit=False).job(seed=seed) for seed in (0, 1)]
    state = {"negatives": torch.full((2, 3), -1), "log_q": torch.full((2, 3), 7.0)}
    NegativeSampler(jobs, CPU).draw(state, torch.zeros(2), torch.tensor([0.0, 1.0]))
    assert state["negatives"][0].tolist() == [-1, -1, -1]
    assert state["log_q"][0].tolist() == [7, 7, 7]
    assert (state["negatives"][1] >= 0).all()
    assert (state["log_q"][1] < 7).all()


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_probabilities_follow_the_power_of_popularity(lab: Make, power: float) -> None:
    job = lab(explicit=False).job(negative_exponent=power)
    weight = (1 + popularity(job.train).double()) ** power
    expected = weight / weight.sum()
    for width in (1, 5):
        drawn = torch.cat([_drawn([job], step, width)[0] for step in range(2000)])
        share = torch.bincount(drawn, minlength=len(weight)) / len(drawn)
        assert float((share - expected).abs().max()) < 0.03


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_log_q_is_the_log_of_the_expected_number_of_draws(lab: Make, power: float) -> None:
    job = lab(explicit=False).job(negative_exponent=power)
    weight = (1 + popularity(job.train).double()) ** power
    for width in (1, 4, 30):  # more draws than items
        state = _state([job], 3, width)
        expected = (width * weight / weight.sum())[state["negatives"][0]].log()
        torch.testing.assert_close(state["log_q"][0].double(), expected, atol=1e-6, rtol=1e-6)


def test_draws_are_stratified(lab: Make) -> None:
    """So counts are close to the expected ones. Here items are equally likely."""
    job = lab(explicit=False).job(negative_exponent=0.0)
    for width, gap in ((9, 0), (18, 0), (12, 2), (30, 2)):
        for step in range(20):
            counts = torch.bincount(_drawn([job], step, width)[0], minlength=9)
            assert float((counts - width / 9).abs().max()) < gap + 1e-9


def test_losses_without_log_q_get_no_probabilities(lab: Make) -> None:
    state = {"negatives": torch.full((1, 3), -1)}
    NegativeSampler([lab(explicit=False).job()], CPU).draw(state, torch.zeros(1), torch.ones(1))
    assert set(state) == {"negatives"}


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_weighted_sums_are_unbiased(lab: Make, power: float) -> None:
    job = lab(explicit=False).job(negative_exponent=power)
    value = torch.linspace(0.5, 3.0, job.train.items, dtype=torch.float64)
    estimates = []
    for step in range(1500):
        state = _state([job], step, 6)
        expected_count = state["log_q"][0].double().exp()
        estimates.append((value[state["negatives"][0]] / expected_count).sum())
    estimate = torch.stack(estimates)
    assert abs(estimate.mean() - value.sum()) < 4 * estimate.std() / len(estimate) ** 0.5
    assert (
        float(estimate.std() / value.sum()) < 1.0
    )  # otherwise the bound above would be too loose to fail


def _loss_and_gradient(model: GRU, states: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    loss = model.losses(states, target, torch.ones_like(target)).mean()
    return loss.detach(), torch.autograd.grad(loss, model.vectors)[0]


def test_the_sampled_softmax_has_the_gradient_of_the_full_softmax(lab: Make) -> None:
    """It is equal if all items are sampled once. With others, it is close only if corrected."""
    data = random_world([9, 3, 12, 1, 7, 11, 4, 8, 6, 5] * 3, items=60, seed=1, explicit=False)
    job, items = lab(explicit=False, data=data).job(negative_exponent=1.0), data.items
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    target = torch.randint(items, (4, 1), generator=generator)

    def made(loss: Loss) -> GRU:
        return GRU(items=items, loss=loss, dim=3).double()

    truth = _loss_and_gradient(made(FullSoftmax()), states, target)
    full = made(SampledSoftmax(items))
    uniform = lab(explicit=False, data=data).job(negative_exponent=0.0)
    every = _state([uniform], 0, items)
    full.negatives.copy_(every["negatives"][0])
    full.log_q.copy_(every["log_q"][0])
    for found, known in zip(_loss_and_gradient(full, states, target), truth, strict=True):
        torch.testing.assert_close(found, known)

    def relative_error(corrected: bool) -> float:
        model, total = made(SampledSoftmax(items // 2)), torch.zeros_like(truth[1])
        for step in range(300):
            state = _state([job], step, items // 2)
            model.negatives.copy_(state["negatives"][0])
            model.log_q.copy_(state["log_q"][0] if corrected else torch.zeros(items // 2))
            total += _loss_and_gradient(model, states, target)[1] / 300
        return float((total - truth[1]).norm() / truth[1].norm())

    assert relative_error(corrected=True) < 0.03 < 0.05 < relative_error(corrected=False)


def test_as_many_negatives_as_items_are_all_items_once(lab: Make) -> None:
    job = lab(explicit=False).job()
    state = _state([job], 3, job.train.items)
    assert state["negatives"][0].tolist() == list(range(job.train.items))
    assert state["log_q"].tolist() == [[0.0] * job.train.items]
