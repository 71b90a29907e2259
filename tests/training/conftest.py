"""A tiny world in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dips.data.interactions import Interactions
from dips.evaluation.progressive import evaluate
from dips.recommender.losses import FullSoftmax, SquaredError
from dips.recommender.ncf import DotProduct
from dips.recommender.stack import Stack
from dips.stream.users import Columns
from dips.testing import random_world
from dips.trace import Trace
from dips.training.config import TrainConfig
from dips.training.trainer import Fitting, fit, start
from dips.training.walks import Job

LENGTHS = [9, 3, 12, 1, 7, 11, 4, 8, 6, 5, 10, 2, 9, 7]
PLAIN: dict[str, Any] = {
    "size": 2, "dim": 3, "batch": 16, "epochs": 3, "inner_rate": 0.1, "inner_steps": 3,
    "learning_rate": 0.03, "weight_decay": 1e-3, "patience": 10,
}  # fmt: skip


class Lab:
    """One world, and runs on it."""

    def __init__(self, explicit: bool = True) -> None:
        self.data: Interactions = random_world(LENGTHS, items=9, seed=1, explicit=explicit)
        self.columns = Columns.of(self.data)
        self.loss = SquaredError() if explicit else FullSoftmax()

    def job(self, **settings: Any) -> Job:
        """A run; its seed decides who trains."""
        config = TrainConfig(**{**PLAIN, **settings})
        generator = torch.Generator().manual_seed(config.seed)
        order = torch.randperm(self.data.users, generator=generator).tolist()
        cut = 8 + config.seed % 3  # parts of different sizes
        return Job(self.data.select(order[:cut]), self.data.select(order[cut:]), config)

    def start(self, jobs: Sequence[Job]) -> Fitting:
        """Recommenders at their start."""
        models = []
        for job in jobs:
            config = job.config
            model = DotProduct(
                items=self.data.items,
                loss=self.loss,
                dim=config.dim,
                offset=3.0 if self.data.explicit else 0.0,
                inner_rate=config.inner_rate,
                inner_steps=config.inner_steps,
                inner_pull=config.inner_pull,
                generator=torch.Generator().manual_seed(config.seed),
            )
            models.append(model)
        return start(jobs, models, "cpu")

    def validate(self, stack: Stack, trace: Trace) -> list[float]:
        """The deciding metric of each run."""
        return [scores.headline for scores in evaluate(stack, trace, low=1.0, high=5.0)]

    def train(self, jobs: Sequence[Job], **rest: Any) -> Fitting:
        """Fit a stack from the start."""
        fitting = self.start(jobs)
        fit(fitting, jobs, self.columns, rest.pop("validate", self.validate), **rest)
        return fitting


@pytest.fixture
def lab() -> Callable[..., Lab]:
    """Make a lab: `lab(explicit=False)` for implicit data."""
    return Lab
