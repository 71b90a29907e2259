"""Does GRU4Rec beat what only counts? Recall@20 against popularity, Markov and tuned item-kNN.

    PYTHONPATH=src python3 results/sequential.py PREPARED.safetensors OUT.json [--seeds 3]
        [--users N] [--epochs N] [--max-seconds S] [--trial '{"loss": "bpr-max", "dim": 128}' ...]

Everything is chosen on validation of the first seed: the neighbours' settings over a grid, the
GRU's among the trials. Then each is scored on test of every seed, once. Runs with torch, numpy and
safetensors alone. Goes on where it was stopped when called again with the same OUT.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dips import experiment
from dips.data.interactions import Interactions
from dips.data.prepared import open_prepared
from dips.data.splitting import Parts
from dips.evaluation.progressive import evaluate_scores
from dips.policy.recency import Last
from dips.preflight import device_of, split
from dips.recommender.neighbours import Neighbours, companions, followers, popularity, recall
from dips.rollout import rollout
from dips.stream.schedule import Schedule
from dips.stream.users import Columns, make_stream
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

NEAR, CHAIN = 500, 2000
SHRINKS = (0.0, 20.0)
READS = ((1, 1.0), (3, 0.7), (5, 0.8), (10, 0.8), (20, 0.9))
"""How many of the last items count, and how they fade."""
HEADLINE, TARGET = "recall@20", 1.2
HARD = {"dropout": 0.5, "weight_decay": 1e-5}
TRIALS: list[dict[str, Any]] = [
    {},
    HARD,
    {"dropout": 0.5, "weight_decay": 1e-4},
    {**HARD, "dim": 192},
    {**HARD, "loss": "softmax", "negatives": 2048},
    {**HARD, "loss": "bpr-max", "negatives": 2048},
    {**HARD, "loss": "top1-max", "negatives": 2048},
    {**HARD, "recommender": "gru-separate"},
]


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--users", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--max-seconds", type=float, default=0.0, help="of training, per trial")
    parser.add_argument("--trial", type=json.loads, action="append")
    given = parser.parse_args()
    notes = Notes(given.out)
    data = open_prepared(given.data)
    flags = {"recommender": "gru", "policy": "all", "epochs": given.epochs,
             "max_users": given.users, "max_seconds": given.max_seconds}  # fmt: skip

    def config(trial: dict[str, Any], seed: int = 0) -> TrainConfig:
        return build_config(flags={**flags, **trial, "seed": seed}, implicit_data=True)

    columns = Columns.of(data, device_of(config({})))

    def score(model: str, settings: dict[str, Any], seed: int, part: int) -> dict[str, Any]:
        parts = split(data, config({}, seed))
        if model != "gru":
            return count(parts[0], parts[part], columns, **settings)
        return learn(parts, config(settings, seed), test=part == 2)

    best = {}
    for model, choices in {**grid(), "gru": given.trial or TRIALS}.items():
        tried = [notes.get(score, model, choice, 0, 1) for choice in choices]
        place = max(range(len(tried)), key=lambda index: tried[index].get(HEADLINE, 0.0))
        best[model] = choices[place]
    for seed in range(given.seeds):
        found = {m: notes.get(score, m, choice, seed, 2)[HEADLINE] for m, choice in best.items()}
        ratio = found.pop("gru") / max(found.values())
        print(f"seed {seed}: {ratio:.3f} times the best of them, {TARGET} are asked for")


class Notes:
    """What was found, in a file: asked again, it does not compute again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def get(self, score: Callable[..., dict[str, Any]], *question: Any) -> dict[str, Any]:
        """The answer to a question (model, settings, seed, part): looked up, or asked for."""
        asked = dict(zip(("model", "settings", "seed", "part"), question, strict=True))
        for line in self.lines:
            if line["asked"] == asked:
                return dict(line["found"])
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
    return {
        "popularity": [{"kind": "popularity"}],
        "markov": [{"kind": "followers"}],
        "item-knn": [
            {"kind": "companions", "shrink": shrink, **read}
            for shrink, read in itertools.product(SHRINKS, reads)
        ],
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
) -> dict[str, float]:
    """Metrics of a model that counts, from the last `size` items of every user of a part."""
    score = scorer(train, kind, shrink, columns.item.device)
    stream = make_stream([part], columns)
    trace = rollout(stream, Last(), size=size, schedule=Schedule((1,)), keys=stream.keys([0]))
    widest = train.items + 2 * size * CHAIN
    return evaluate_scores(partial(score, fade=fade), trace, 0, widest).metrics


def scorer(train: Interactions, kind: str, shrink: float, device: torch.device) -> Any:
    """From sketches to scores of all items."""
    popular = popularity(train).float().to(device)
    if kind == "popularity":
        return lambda evidence, fade: popular.expand(len(evidence.item), -1)
    key = (train.starts.tobytes(), kind, shrink)
    if key not in _counted:
        found = followers(train, CHAIN) if kind == "followers" else companions(train, NEAR, shrink)
        _counted.clear()
        _counted[key] = Neighbours(*(field.to(device) for field in found))
    near = _counted[key]
    return lambda evidence, fade: recall(near, popular, evidence, fade)


_counted: dict[tuple[bytes, str, float], Neighbours] = {}
"""The last table, for settings that differ only in how it is read."""


def learn(parts: Parts, config: TrainConfig, *, test: bool) -> dict[str, Any]:
    """Metrics of one GRU on validation, or on test."""

    def watch(moment: experiment.Moment) -> None:
        print(moment.epoch, round(moment.seconds, 1), moment.train_loss, moment.valid, flush=True)

    outcome = experiment.run([(parts, config)], test=test, watch=watch)[0]
    metrics = outcome.test.metrics if outcome.test else outcome.valid
    return {**metrics, "best_epoch": outcome.best_epoch, "error": outcome.error}


if __name__ == "__main__":
    main()
