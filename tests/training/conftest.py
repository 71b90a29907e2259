"""Fixtures: small data sets, training runs on them, and rollouts of a policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dips.data.interactions import Interactions
from dips.evaluation.progressive import evaluate
from dips.policy.registry import build_policy
from dips.recommender.dot import DotProduct
from dips.recommender.gru import GRU
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, Loss, SampledSoftmax, SquaredError
from dips.recommender.sasrec import SASRec
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import Rollout
from dips.rollout.trace import Trace
from dips.sketch.selection import make_selector
from dips.stream.users import EventColumns, make_stream
from dips.studies.checks import policy_spec, resolved
from dips.testing import random_world
from dips.training.config import TrainConfig
from dips.training.policy_batches import PolicyBatch, RefreshTable, pack_policy_batches
from dips.training.policy_gradients import policy_gradients
from dips.training.rollouts import Job, recorded_signals
from dips.training.trainer import TrainingState, fit, start

LENGTHS = [9, 3, 12, 1, 7, 11, 4, 8, 6, 5, 10, 2, 9, 7]
SIZE = 2
PLAIN: dict[str, Any] = {
    "policy": "last", "size": SIZE, "dim": 3, "batch_size": 16, "epochs": 3, "inner_lr": 0.1,
    "inner_steps": 3,
    "learning_rate": 0.03, "weight_decay": 1e-3, "patience": 10, "policy_batch_size": 4096,
    "residual": True, "policy_lr": 3e-3, "policy_freeze_epochs": 2, "baselines": (),
    "revert_tolerance": math.inf, "user_batches_per_epoch": 1, "predicted_score": False,
}  # fmt: skip


class Lab:
    """Small data set, and training runs on it."""

    def __init__(
        self,
        explicit: bool = True,
        data: Interactions | None = None,
        double: bool = False,
        negatives: int = 0,
        recommender: str = "",
    ) -> None:
        self.data = data or random_world(LENGTHS, items=9, seed=1, explicit=explicit)
        self.dtype = torch.float64 if double else torch.float32
        self.columns = EventColumns.of(self.data)
        self.columns = replace(self.columns, rating=self.columns.rating.to(self.dtype))
        self.loss: Loss = SquaredError() if explicit else FullSoftmax()
        self.form: type[DotProduct | LinearisedDotProduct | GRU | SASRec] = DotProduct
        clicks = not self.data.explicit
        self.features = {
            "repeat_feature": clicks, "recency_decay": clicks, "tie_embeddings": not clicks
        }  # fmt: skip
        if recommender:
            self.form = {"gru": GRU, "sasrec": SASRec}[recommender]
            self.features = {"repeat_feature": True}
        if negatives:
            self.form, self.loss = LinearisedDotProduct, SampledSoftmax(negatives)

    def job(self, **settings: Any) -> Job:
        """Return a run. Its seed decides which users train."""
        config = TrainConfig.of(**{**PLAIN, **settings})
        generator = torch.Generator().manual_seed(config.training.seed)
        order = torch.randperm(self.data.users, generator=generator).tolist()
        cut = 8 + config.training.seed % 3  # parts of different sizes
        train, valid = self.data.select(order[:cut]), self.data.select(order[cut:])
        return Job(train, valid, resolved(train, config))

    def start(self, jobs: Sequence[Job]) -> TrainingState:
        """Return recommenders and policies with their initial parameters."""
        models, policies = [], []
        for job in jobs:
            config = job.config
            model = self.form(
                items=self.data.items,
                loss=self.loss,
                dim=config.model.dim,
                rating_center=3.0 if self.data.explicit else 0.0,
                rating_spread=1.3 if self.data.explicit else 1.0,
                inner_lr=config.model.inner_lr,
                inner_steps=config.model.inner_steps,
                prior_penalty=config.model.prior_penalty,
                generator=torch.Generator().manual_seed(config.training.seed),
                **self.features,  # type: ignore[arg-type]
            )
            models.append(model.to(self.dtype))
            shape = replace(policy_spec(job.train, config), center=3.0, spread=1.5)
            policy = build_policy(shape, config.training.seed)
            policies.append(policy.to(self.dtype) if isinstance(policy, nn.Module) else policy)
        return start(jobs, models, "cpu", policies)

    def validate(self, stack: StackedRecommenders, trace: Trace) -> list[float]:
        """Return the validation metric of each run."""
        return [scores.objective for scores in evaluate(stack, trace, low=1.0, high=5.0)]

    def train(self, jobs: Sequence[Job], **rest: Any) -> TrainingState:
        """Train stacked runs from their initial parameters."""
        fit_state = self.start(jobs)
        self.fit(fit_state, jobs, **rest)
        return fit_state

    def fit(self, fit_state: TrainingState, jobs: Sequence[Job], **rest: Any) -> None:
        """Train stacked runs from the parameters that they have."""
        fit(fit_state, jobs, self.columns, rest.pop("validate", self.validate), **rest)


@pytest.fixture
def lab() -> Callable[..., Lab]:
    """Return `lab(...)`: `explicit=False` for implicit data, `double=True` for float64.

    With `negatives` the recommender has a linearised inner loop and a sampled softmax. The
    recommender is `gru` or `sasrec`, with a repeat feature, if it is named.
    """
    return Lab


class Scene:
    """Rollout of a policy with a recommender, in float64."""

    def __init__(self, world: Any, data: Interactions, config: TrainConfig) -> None:
        job = replace(world.job(), train=data, valid=data, config=config)
        self.config = config
        self.fit_state: TrainingState = world.start([job])
        generator = torch.Generator().manual_seed(7)
        for name, value in self.fit_state.parameters().items():
            if name not in ("recommender.inner_lr", "recommender.offset"):
                spread = 0.25 if name.startswith("recommender.") else 0.05
                value += torch.randn(value.shape, generator=generator).double() * spread
        self.stream = make_stream([data], world.columns)
        assert self.fit_state.policies is not None
        self.stack, self.policies = self.fit_state.stack, self.fit_state.policies
        self.rollout = Rollout(
            self.stream,
            size=SIZE,
            schedule=config.sketch.schedule,
            keys=self.stream.keys([0], 1),
            selector=make_selector(config.sketch.selection),
            recorded_signals=recorded_signals(self.policies.template),  # type: ignore[arg-type]
        )
        self.rollout.advance(self.policies, self.stack)
        self.trace = self.rollout.trace
        self.refresh_table = RefreshTable.of(
            config.sketch.schedule, SIZE, self.stream.longest, torch.device("cpu")
        )
        self.refreshes = dict(config.sketch.schedule.refreshes(SIZE, self.stream.longest))

    def gradient(self, policy_batch: PolicyBatch, **changes: Any) -> dict[str, Tensor]:
        """Return policy gradients, summed over the predictions of the policy batch."""
        config = self.config.but(**changes)
        found = policy_gradients(
            self.stack, self.policies, self.trace, self.refresh_table, policy_batch, config
        )
        count = int((policy_batch.predicted >= 0).sum())
        return {name: value[0] * count for name, value in found.items()}

    def whole(self) -> PolicyBatch:
        """Return one policy batch with all users."""
        (policy_batch,) = pack_policy_batches(self.trace, self.refresh_table, [0], 1, 10**6)
        return policy_batch


@pytest.fixture
def scene(lab: Callable[..., Any], losses: dict[str, Loss]) -> Callable[..., Scene]:
    """Return `scene(policy, loss, periods, **settings)`, which makes a rollout."""

    def make(
        policy: str = "dips", loss: str = "mse", periods: tuple[int, ...] = (1,),
        data: Interactions | None = None, recommender: str = "", **settings: Any,
    ) -> Scene:  # fmt: skip
        data = data or random_world(
            [9, 3, 12, 1, 7, 6], items=8, seed=2, explicit=loss != "softmax"
        )
        world = lab(data.explicit, data, double=True, recommender=recommender)
        world.loss = losses[loss]
        own = {"credit": "identity", "queue": 3, "discount": 0.7, "dropout": 0.0, **settings}
        config = world.job(policy=policy, size=SIZE, periods=periods, **own).config
        return Scene(world, data, config)

    return make
