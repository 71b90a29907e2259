"""Negatives are drawn by popularity, without return, and as a function of seed and step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.recommender.neighbours import popularity
from dips.training.negatives import Negatives

Make = Callable[..., Any]
CPU = torch.device("cpu")


def _drawn(jobs: list[Any], step: int, width: int = 3) -> Tensor:
    negatives = torch.full((len(jobs), width), -1)
    steps = torch.full((len(jobs),), step, dtype=torch.float64)
    Negatives(jobs, CPU).draw(negatives, steps, torch.ones(len(jobs)))
    return negatives


def test_a_function_of_seed_and_step(lab: Make) -> None:
    world = lab(explicit=False)
    jobs = [world.job(seed=seed) for seed in (0, 1)]
    both = _drawn(jobs, 5)
    assert torch.equal(both, _drawn(jobs, 5))
    assert torch.equal(both[1:], _drawn(jobs[1:], 5))  # alone as in a stack
    later = [_drawn(jobs, step) for step in range(6, 12)]
    assert not any(torch.equal(both, other) for other in later)
    for row in torch.cat([both, *later]):
        assert len(set(row.tolist())) == 3


def test_those_who_rest_keep_theirs(lab: Make) -> None:
    jobs = [lab(explicit=False).job(seed=seed) for seed in (0, 1)]
    negatives = torch.full((2, 3), -1)
    Negatives(jobs, CPU).draw(negatives, torch.zeros(2), torch.tensor([0.0, 1.0]))
    assert negatives[0].tolist() == [-1, -1, -1]
    assert (negatives[1] >= 0).all()


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_chances_follow_the_power_of_popularity(lab: Make, power: float) -> None:
    job = lab(explicit=False).job(popularity=power)
    weight = (1 + popularity(job.train).double()) ** power
    expected = weight / weight.sum()
    draws = torch.cat([_drawn([job], step, 1)[0] for step in range(3000)])
    share = torch.bincount(draws, minlength=len(weight)) / len(draws)
    assert float((share - expected).abs().max()) < 0.03
