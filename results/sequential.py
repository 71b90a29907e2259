"""Does GRU4Rec beat what only counts? Recall@20 against popularity, Markov and tuned item-kNN.

    PYTHONPATH=src python3 results/sequential.py PREPARED.safetensors OUT.json [--seeds 3]
        [--users N] [--epochs N] [--max-seconds S] [--trial '{"loss": "bpr-max", "dim": 128}' ...]

Everything is chosen on validation of the first seed: the neighbours' settings over a grid, the
GRU's among the trials. Then each is scored on test of every seed, once. All rank all items; what
the user had before may be struck out, by those that count as a setting, by the GRU as it learns.
Runs with torch, numpy and safetensors alone. Exits with 130 where time was over: the same command
goes on where it was stopped.
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
from dips.evaluation.scoring import score as score_bundle
from dips.policy.recency import KeepAll
from dips.recommender.base import Evidence, struck
from dips.recommender.memory_based import (
    MemoryBased,
    companions,
    followers,
    popularity,
    recall,
)
from dips.rollout.rollout import rollout
from dips.stream.schedule import Schedule
from dips.stream.users import Columns, make_stream
from dips.studies import run as experiment
from dips.studies.checks import device_of, split
from dips.studies.result import Moment, RunResult
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

NEAR, CHAIN = 500, 2000
SHRINKS = (0.0, 20.0)
READS = ((1, 1.0), (3, 0.7), (5, 0.8), (10, 0.8), (20, 0.9))
"""How many of the last items count, and how they fade."""
HEADLINE, TARGET = "recall@20", 1.2
WIDE = {"dim": 512, "cosine": 1, "filter_sketch": 1, "dropout": 0.3, "learning_rate": 3e-3,
        "batch": 1536}  # fmt: skip
HARD = {"dropout": 0.5, "weight_decay": 1e-5}
TRIALS: list[dict[str, Any]] = [
    {**WIDE, "epochs": 2},
    {**WIDE, "epochs": 3},
    {},
    HARD,
    {**HARD, "loss": "softmax", "negatives": 2048},
    {**HARD, "loss": "bpr-max", "negatives": 2048},
    {**HARD, "loss": "top1-max", "negatives": 2048},
    {**HARD, "recommender": "gru-separate"},
]
Tick = Callable[[str], None]


def main() -> int:
    """Parse, run, write."""
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
    notes = Notes(given.out, tick)
    data = open_prepared(given.data)
    flags = {"recommender": "gru", "policy": "all", "epochs": given.epochs,
             "max_users": given.users}  # fmt: skip

    def config(trial: dict[str, Any], seed: int = 0) -> TrainConfig:
        return build_config(flags={**flags, **trial, "seed": seed}, implicit_data=True)

    columns = Columns.of(data, device_of(config({})))

    def score(model: str, settings: dict[str, Any], seed: int, part: int) -> dict[str, Any]:
        parts = split(data, config({}, seed))
        if model != "gru":
            return count(parts[0], parts[part], columns, **settings)
        return learn(parts, config(settings, seed), columns, part, tick)

    try:
        best = {}
        for model, choices in {"gru": given.trial or TRIALS, **grid()}.items():
            tried = [notes.get(score, model, choice, 0, 1) for choice in choices]
            place = max(range(len(tried)), key=lambda index: tried[index].get(HEADLINE, 0.0))
            best[model] = choices[place]
        for seed in range(given.seeds):
            told = {m: notes.get(score, m, each, seed, 2) for m, each in best.items()}
            print(f"seed {seed}: {lead(told):.3f} times the best of them, {TARGET} are asked for")
    except KeyboardInterrupt:
        return 130
    return 0


def lead(told: dict[str, dict[str, Any]]) -> float:
    """The GRU's headline over the best of the others'; what diverged has none."""
    found = {model: metrics.get(HEADLINE, 0.0) for model, metrics in told.items()}
    return float(found.pop("gru") / max(found.values()))


class Notes:
    """What was found, in a file: asked again, it does not compute again."""

    def __init__(self, path: Path, tick: Tick) -> None:
        self.path, self.tick = path, tick
        self.lines: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def get(self, score: Callable[..., dict[str, Any]], *question: Any) -> dict[str, Any]:
        """The answer to a question (model, settings, seed, part): looked up, or asked for."""
        asked = dict(zip(("model", "settings", "seed", "part"), question, strict=True))
        for line in self.lines:
            if line["asked"] == asked:
                return dict(line["found"])
        self.tick(str(question))
        began = time.monotonic()
        found = score(*question)
        seconds = round(time.monotonic() - began, 1)
        self.lines.append({"asked": asked, "found": found, "seconds": seconds})
        self.path.write_text(json.dumps(self.lines, indent=1))
        print(json.dumps(self.lines[-1]), flush=True)
        return found


def grid() -> dict[str, list[dict[str, Any]]]:
    """Settings of each model that counts."""
    reads = [{"size": size, "fade": fade} for size, fade in READS]
    choices: dict[str, list[dict[str, Any]]] = {
        "popularity": [{"kind": "popularity"}],
        "markov": [{"kind": "followers"}],
        "item-knn": [
            {"kind": "companions", "shrink": shrink, **read}
            for shrink, read in itertools.product(SHRINKS, reads)
        ],
    }
    return {
        model: [{**choice, **more} for choice in same for more in ({}, {"strike": True})]
        for model, same in choices.items()
    }


def count(
    train: Interactions,
    part: Interactions,
    columns: Columns,
    *,
    kind: str,
    size: int = 1,
    fade: float = 1.0,
    shrink: float = 0.0,
    strike: bool = False,
) -> dict[str, float]:
    """Metrics of a model that counts, from the last `size` items of every user of a part.

    With `strike` all that the user had before comes last.
    """
    scores_of = partial(scorer(train, kind, shrink, columns.item.device), fade=fade)
    stream = make_stream([part], columns)
    trace = rollout(stream, KeepAll(), size=1, schedule=Schedule((1,)), keys=stream.keys([0]))

    def score(evidence: Evidence) -> Tensor:
        scores: Tensor = scores_of(newest(evidence, size))
        return struck(scores, evidence.item, evidence.weight) if strike else scores

    near = {"popularity": 0, "followers": CHAIN, "companions": NEAR}[kind]
    widest = train.items + 2 * size * near + stream.longest
    return evaluate_scores(score, trace, 0, widest).metrics


def newest(evidence: Evidence, size: int) -> Evidence:
    """The last `size` entries of whole histories, in their order."""
    slots = evidence.slots.clamp_max(size)
    place = (evidence.slots - slots)[:, None] + torch.arange(size, device=slots.device)
    place = place.clamp_max(evidence.item.shape[1] - 1)
    there = torch.arange(size, device=slots.device) < slots[:, None]
    entries = evidence._asdict()
    del entries["slots"]
    last = {name: field.gather(1, place) for name, field in entries.items()}
    return Evidence(**last | {"weight": last["weight"] * there, "slots": slots})


def scorer(train: Interactions, kind: str, shrink: float, device: torch.device) -> Any:
    """From sketches to scores of all items."""
    popular = popularity(train).float().to(device)
    if kind == "popularity":
        return lambda evidence, fade: popular.expand(len(evidence.item), -1)
    key = (train.starts.tobytes(), kind, shrink)
    if key not in _counted:
        _counted.clear()
        _counted[key] = (
            followers(train, CHAIN, device)
            if kind == "followers"
            else companions(train, NEAR, shrink, device)
        )
    near = _counted[key]
    return lambda evidence, fade: recall(near, popular, evidence, fade)


_counted: dict[tuple[bytes, str, float], MemoryBased] = {}
"""The last table, for settings that differ only in how it is read."""


def learn(
    parts: Parts, config: TrainConfig, columns: Columns, part: int, tick: Tick
) -> dict[str, Any]:
    """Metrics of one GRU on a part: 1 is validation, 2 test. What was trained is not again."""

    def watch(moment: Moment) -> None:
        tick(f"epoch {moment.epoch}, loss {moment.train_loss[0]:.4f}, {abs(moment.valid[0]):.4f}")

    if config not in _learned:
        _learned[config] = experiment.run([(parts, config)], test=False, watch=watch)[0]
    outcome = _learned[config]
    metrics = outcome.valid
    if part == 2 and not outcome.error:
        metrics = score_bundle(outcome.trained, parts[part], columns).metrics
    return {**metrics, "best_epoch": outcome.best_epoch, "error": outcome.error}


_learned: dict[TrainConfig, RunResult] = {}
"""The runs of this call."""


if __name__ == "__main__":
    sys.exit(main())
