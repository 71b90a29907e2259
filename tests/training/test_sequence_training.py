"""Training of sequential models and of losses with negatives: learning, resuming, stacking."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dips.data.interactions import Interactions, from_arrays
from dips.evaluation.progressive import evaluate
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import Trace
from dips.stream.users import EventColumns
from dips.studies.checks import resolved
from dips.testing import random_world
from dips.training.config import TrainConfig
from dips.training.rollouts import Job
from dips.training.state import Progress, TrainingState, start
from dips.training.trainer import fit

ITEMS = 12
RUNS: dict[str, dict[str, Any]] = {
    "gru": {"recommender": "gru", "policy": "all", "dropout": 0.3},
    "gru-user_batches": {"recommender": "gru", "policy": "all", "user_batch": 4, "dropout": 0.3},
    "gru-bpr-max": {
        "recommender": "gru",
        "tie_embeddings": False,
        "policy": "all",
        "loss": "bpr-max",
    },
    "gru-sketch": {"recommender": "gru", "policy": "reservoir", "loss": "top1-max"},
    "sasrec": {"recommender": "sasrec", "policy": "all", "dropout": 0.3},
    "sasrec-sketch": {"recommender": "sasrec", "policy": "reservoir", "loss": "bpr-max"},
    "dot-bpr": {"policy": "last", "loss": "bpr"},
    "mlp-top1": {"recommender": "mlp", "policy": "hardest", "loss": "top1"},
}


def _jobs(data: Interactions, seeds: Sequence[int], **settings: Any) -> list[Job]:
    plain = {"loss": "softmax", "size": 2, "dim": 6, "batch_size": 16, "epochs": 2,
             "inner_steps": 2,
             "weight_decay": 3e-4,
             "patience": 4, "negatives": None if settings.get("loss") is None else 5}  # fmt: skip
    cut = data.users * 3 // 4
    train, valid = data.select(range(cut)), data.select(range(cut, data.users))
    return [
        Job(part, valid, resolved(part, TrainConfig.of(**{**plain, **settings, "seed": seed})))
        for seed in seeds
        for part in [train.select(range(seed, cut))]
    ]


def _start(jobs: Sequence[Job]) -> TrainingState:
    config = jobs[0].config
    models = [
        make_recommender(
            RecommenderSpec(
                kind=config.model.recommender,
                loss=config.model.loss,
                items=ITEMS,
                dim=config.model.dim,
                inner_steps=config.model.inner_steps,
                negatives=config.model.negatives or 0,
            ),
            job.config.training.seed,
        )
        for job in jobs
    ]
    return start(jobs, models, "cpu")


def _validate(stack: StackedRecommenders, trace: Trace) -> list[float]:
    return [-scores.metrics["mrr@20"] for scores in evaluate(stack, trace)]


def _train(jobs: Sequence[Job], **rest: Any) -> TrainingState:
    fit_state = _start(jobs)
    fit(fit_state, jobs, EventColumns.of(jobs[0].train), _validate, **rest)
    return fit_state


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_a_resumed_run_equals_the_uninterrupted_run(settings: dict[str, Any]) -> None:
    data = random_world([9, 3, 12, 1, 7, 11, 4, 8], items=ITEMS, explicit=False)
    jobs = _jobs(data, (0, 1), **settings)
    left: list[tuple[dict[str, torch.Tensor], Progress]] = []

    def save(fit_state: TrainingState) -> None:
        tensors = {name: value.clone() for name, value in fit_state.tensors().items()}
        left.append((tensors, copy.deepcopy(fit_state.progress)))

    whole = _train(jobs, save=save)
    resumed = _start(jobs)
    resumed.load(*left[0])
    fit(resumed, jobs, EventColumns.of(data), _validate)
    for name, value in whole.tensors().items():
        assert torch.equal(resumed.tensors()[name], value), name


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_a_stacked_run_equals_the_single_run(settings: dict[str, Any]) -> None:
    data = random_world([9, 3, 12, 1, 7, 11, 4, 8], items=ITEMS, explicit=False)
    both = _train(_jobs(data, (0, 1), **settings))
    for run in (0, 1):
        single = _train(_jobs(data, (run,), **settings))
        for name, value in single.parameters().items():
            torch.testing.assert_close(both.parameters()[name][run], value[0], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"recommender": "gru", "policy": "all"},
        {"recommender": "gru", "tie_embeddings": False, "policy": "all", "loss": "bpr-max"},
        {"recommender": "gru", "policy": "last", "loss": "top1-max"},
        {"recommender": "sasrec", "policy": "all"},
        {"recommender": "sasrec", "policy": "last", "loss": "top1-max"},
        {"policy": "last", "size": 1, "loss": "bpr", "inner_steps": 5, "inner_lr": 1.0},
        {"policy": "last", "size": 1, "loss": "top1", "inner_steps": 5, "inner_lr": 1.0},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
def test_the_next_item_is_learned(settings: dict[str, Any]) -> None:
    """Items come in pairs (0 1, 2 3, ...), which popularity cannot predict."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, ITEMS // 2, (40, 6))
    item = np.stack([2 * pairs, 2 * pairs + 1], 2).reshape(-1)
    data = from_arrays(np.repeat(np.arange(40), 12), item, None, np.arange(len(item)))
    jobs = _jobs(data, (0,), **{"epochs": 12, "learning_rate": 0.03, **settings})
    score = -_train(jobs).progress.best[0]
    chance = sum(1 / rank for rank in range(1, ITEMS + 1)) / ITEMS  # 0.26
    assert score > 1.6 * chance
