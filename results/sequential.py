"""Compare GRU4Rec with popularity, Markov chains, item-kNN and a linear model by Recall@20.

    PYTHONPATH=src python3 results/sequential.py PREPARED.safetensors OUT.json [--seeds 3]
        [--users N] [--epochs N] [--max-seconds S] [--trial '{"loss": "bpr-max", "dim": 128}' ...]

All settings are tuned on the validation users of the first seed: the GRU's among the trials, the
others' over a grid. Then each model is scored once on the test users of every seed. All models
rank all items; earlier items of the user may be filtered. The linear next-item model is left out
where its matrix of items x items would be too large; a line says so. Needs only torch, numpy and
safetensors. Exits with 130 if the time is over; the same command resumes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from protocol import clock
from torch import Tensor

from dips.data.interactions import Interactions
from dips.data.prepared import open_prepared
from dips.data.splitting import Parts
from dips.evaluation.progressive import evaluate_scores
from dips.evaluation.scoring import score_users
from dips.policy.recency import KeepAll
from dips.recommender.base import Evidence, mask_items
from dips.recommender.memory_based import (
    MAX_LINEAR_ITEMS,
    knn_neighbours,
    linear_scores,
    linear_weights,
    markov_neighbours,
    neighbour_scores,
    popularity,
)
from dips.rollout.rollout import rollout
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream
from dips.studies.checks import device_of, split
from dips.studies.progress import EpochReport
from dips.studies.result import RunResult
from dips.studies.run import train_runs
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

NEAR, CHAIN = 500, 2000
SHRINKS = (0.0, 20.0)
PENALTIES = (100.0, 300.0, 1000.0)
READS = ((1, 1.0), (3, 0.7), (5, 0.8), (10, 0.8), (20, 0.9))
"""Number of newest items that are read, and their recency decay."""
METRIC, TARGET = "recall@20", 1.2
WIDE = {"dim": 512, "cosine": True, "filter_sketch": True, "dropout": 0.3, "learning_rate": 3e-3,
        "batch_size": 1536}  # fmt: skip
HARD = {"dropout": 0.5, "weight_decay": 1e-5}
TRIALS: list[dict[str, Any]] = [
    {**WIDE, "epochs": 2},
    {**WIDE, "epochs": 3},
    {},
    HARD,
    {**HARD, "loss": "softmax", "negatives": 2048},
    {**HARD, "loss": "bpr-max", "negatives": 2048},
    {**HARD, "loss": "top1-max", "negatives": 2048},
    {**HARD, "recommender": "gru", "tie_embeddings": False},
]
Tick = Callable[[str], None]


def main() -> int:
    """Tune and score all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--users", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--max-seconds", type=float, default=0.0, help="0: no limit")
    parser.add_argument("--trial", type=json.loads, action="append")
    given = parser.parse_args()
    tick = clock(given.out.stem, given.max_seconds or math.inf)
    cache = ResultCache(given.out, tick)
    data = open_prepared(given.data)
    flags = {"recommender": "gru", "policy": "all", "epochs": given.epochs,
             "max_users": given.users}  # fmt: skip

    def config(trial: dict[str, Any], seed: int = 0) -> TrainConfig:
        return build_config(flags={**flags, **trial, "seed": seed})

    columns = EventColumns.of(data, device_of(config({})))

    def score(model: str, settings: dict[str, Any], seed: int, part: int) -> dict[str, Any]:
        parts = split(data, config({}, seed))
        if model != "gru":
            return count(parts[0], parts[part], columns, **settings)
        return learn(parts, config(settings, seed), columns, part, tick)

    try:
        best = {}
        for model, choices in {"gru": given.trial or TRIALS, **grid()}.items():
            if model == "linear" and data.items > MAX_LINEAR_ITEMS:
                print(f"linear is left out: {data.items:,} items, at most {MAX_LINEAR_ITEMS:,}")
                continue
            tried = [cache.get(score, model, choice, 0, 1) for choice in choices]
            index = max(range(len(tried)), key=lambda i: tried[i].get(METRIC, 0.0))
            best[model] = choices[index]
        for seed in range(given.seeds):
            found = {m: cache.get(score, m, each, seed, 2) for m, each in best.items()}
            print(f"seed {seed}: {ratio(found):.3f} times the best baseline; target {TARGET}")
    except KeyboardInterrupt:
        return 130
    return 0


def ratio(found: dict[str, dict[str, Any]]) -> float:
    """Return the GRU's metric divided by the best of the others; a diverged model has 0."""
    values = {model: metrics.get(METRIC, 0.0) for model, metrics in found.items()}
    return float(values.pop("gru") / max(values.values()))


class ResultCache:
    """Results in a JSON file; a finished result is not computed again."""

    def __init__(self, path: Path, tick: Tick) -> None:
        self.path, self.tick = path, tick
        self.lines: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def get(self, score: Callable[..., dict[str, Any]], *key: Any) -> dict[str, Any]:
        """Return the result of a key (model, settings, seed, part), cached or computed."""
        asked = dict(zip(("model", "settings", "seed", "part"), key, strict=True))
        for line in self.lines:
            if line["asked"] == asked:
                return dict(line["found"])
        self.tick(str(key))
        began = time.monotonic()
        found = score(*key)
        seconds = round(time.monotonic() - began, 1)
        self.lines.append({"asked": asked, "found": found, "seconds": seconds})
        self.path.write_text(json.dumps(self.lines, indent=1))
        print(json.dumps(self.lines[-1]), flush=True)
        return found


def grid() -> dict[str, list[dict[str, Any]]]:
    """Return the settings of each counting model."""
    reads = [{"size": size, "decay": decay} for size, decay in READS]
    choices: dict[str, list[dict[str, Any]]] = {
        "popularity": [{"kind": "popularity"}],
        "markov": [{"kind": "followers"}],
        "item-knn": [
            {"kind": "companions", "shrink": shrink, **read}
            for shrink, read in itertools.product(SHRINKS, reads)
        ],
        "linear": [
            {"kind": "linear", "penalty": penalty, **read}
            for penalty, read in itertools.product(PENALTIES, reads)
        ],
    }
    return {
        model: [{**choice, **more} for choice in same for more in ({}, {"filter_seen": True})]
        for model, same in choices.items()
    }


def count(
    train: Interactions,
    part: Interactions,
    columns: EventColumns,
    *,
    kind: str,
    size: int = 1,
    decay: float = 1.0,
    shrink: float = 0.0,
    penalty: float = 0.0,
    filter_seen: bool = False,
) -> dict[str, float]:
    """Return the metrics of a counting model that reads the last `size` items of each user.

    With `filter_seen` all earlier items of the user rank last.
    """
    scores_of = scorer(train, columns.item.device, kind, size, decay, shrink, penalty)
    stream = make_stream([part], columns)
    trace = rollout(stream, KeepAll(), size=1, schedule=Schedule((1,)), keys=stream.keys([0]))

    def score(evidence: Evidence) -> Tensor:
        scores: Tensor = scores_of(newest(evidence, size))
        return mask_items(scores, evidence.item, evidence.weight) if filter_seen else scores

    near = {"popularity": 0, "followers": CHAIN, "companions": NEAR, "linear": 1}[kind]
    widest = train.items + 2 * size * near + stream.longest
    return evaluate_scores(score, trace, 0, widest).metrics


def newest(evidence: Evidence, size: int) -> Evidence:
    """Return the last `size` entries of full histories, in order."""
    slots = evidence.slots.clamp_max(size)
    position = (evidence.slots - slots)[:, None] + torch.arange(size, device=slots.device)
    position = position.clamp_max(evidence.item.shape[1] - 1)
    there = torch.arange(size, device=slots.device) < slots[:, None]
    entries = evidence._asdict()
    del entries["slots"]
    last = {name: field.gather(1, position) for name, field in entries.items()}
    return Evidence(**last | {"weight": last["weight"] * there, "slots": slots})


def scorer(
    train: Interactions,
    device: torch.device,
    kind: str,
    size: int,
    decay: float,
    shrink: float,
    penalty: float,
) -> Callable[[Evidence], Tensor]:
    """Return a function from evidence to scores of all items, [rows, items]."""
    popular = popularity(train).float().to(device)
    if kind == "popularity":
        return lambda evidence: popular.expand(len(evidence.item), -1)
    fit = {
        "followers": partial(markov_neighbours, train, CHAIN, device),
        "companions": partial(knn_neighbours, train, NEAR, shrink, device),
        "linear": partial(linear_weights, train, size, decay, penalty, device),
    }[kind]
    key = (train.starts.tobytes(), kind, *fit.args[1:])
    if key not in _counted:
        _counted.clear()
        _counted[key] = fit()
    model, scores = _counted[key], linear_scores if kind == "linear" else neighbour_scores
    return lambda evidence: scores(model, popular, evidence, decay)


_counted: dict[tuple[Any, ...], Any] = {}
"""The last fitted model, for settings that share it."""


def learn(
    parts: Parts, config: TrainConfig, columns: EventColumns, part: int, tick: Tick
) -> dict[str, Any]:
    """Return the metrics of one GRU on a part (1: validation, 2: test); runs are cached."""

    def on_epoch(report: EpochReport) -> None:
        tick(f"epoch {report.epoch}, loss {report.train_loss[0]:.4f}, {abs(report.valid[0]):.4f}")

    if config not in _learned:
        _learned[config] = train_runs([(parts, config)], test=False, on_epoch=on_epoch)[0]
    result = _learned[config]
    metrics = result.valid
    if part == 2 and not result.error:
        metrics = score_users(result.trained, parts[part], columns).metrics
    return {**metrics, "best_epoch": result.best_epoch, "error": result.error}


_learned: dict[TrainConfig, RunResult] = {}
"""The runs of this call."""


if __name__ == "__main__":
    sys.exit(main())
