"""Compare inner losses for clicks at equal tuning: Recall@20 and MRR@20, by split.

    PYTHONPATH=src python3 results/inner_losses.py DATA OUT --inner-loss squared --epochs 6 \
        [--policies last,learned] [--sizes 4,16] [--seeds 3] [--policy-freeze-epochs 2]

The weight decay of each inner loss is chosen on the validation users of the first split, with the
policy `last` at the first size; with `--inner-lr-factors` the inner learning rate too. All other
settings are those of the data. Rows are added to OUT/rows.csv, trials to OUT/trials.csv. One
process runs one inner loss. Needs only torch, numpy and safetensors if DATA is a file of
`dips data prepare`.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import squared_inner_loss
from inner_loss_table import INNER_LOSSES, METRICS
from protocol import numbers, write_origin

from dips.api import load
from dips.data.interactions import Interactions
from dips.studies.checks import resolved, split
from dips.studies.run import train_runs
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

FACTORS = "0.33,1,3,10"
"""Tried weight decays, as multiples of the default of `dips`."""


class Point(NamedTuple):
    """Settings that are tuned."""

    weight_decay: float
    inner_lr: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune and train one inner loss."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(typed)
    if given.inner_loss.startswith("squared"):
        squared_inner_loss.use_squared_loss(given.inner_loss == "squared-solved")
    data = load(given.data)
    given.out.mkdir(parents=True, exist_ok=True)
    write_origin(given.out, given.data, ["results/inner_losses.py", *typed], {})
    point = tune(data, given)
    for size in given.sizes:
        for policy in given.policies.split(","):
            run(data, given, policy, size, point)
    return 0


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("data", help="a prepared file; with polars also a name")
    found.add_argument("out", type=Path)
    found.add_argument("--inner-loss", choices=INNER_LOSSES, required=True)
    found.add_argument("--policies", default="last,learned")
    found.add_argument("--sizes", default="4,16", type=numbers)
    found.add_argument("--seeds", default=3, type=int, help="splits")
    found.add_argument("--first-seed", default=0, type=int)
    found.add_argument("--epochs", type=int, help="default: decided from the data")
    found.add_argument("--policy-freeze-epochs", type=int)
    found.add_argument("--factors", default=FACTORS, type=factors, help="of the weight decay")
    found.add_argument("--inner-lr-factors", default="1", type=factors)
    found.add_argument("--max-users", type=int)
    return found


def factors(text: str) -> list[float]:
    """Return the numbers of a list such as "0.3,1,3"."""
    return [float(number) for number in text.split(",")]


def settings(given: argparse.Namespace, policy: str, size: int, **more: Any) -> TrainConfig:
    """Return the settings of a run."""
    flags: dict[str, Any] = {"policy": policy, "size": size, "epochs": given.epochs}
    flags |= {"patience": given.epochs or 100, "max_users": given.max_users, "task": "implicit"}
    flags |= {"inner_loss": "softmax" if given.inner_loss == "softmax" else "linearised"}
    if policy == "learned":
        flags |= {"baselines": (), "policy_warmup_epochs": 0}
        flags |= {"policy_freeze_epochs": given.policy_freeze_epochs}
    return build_config(flags={**flags, **more})


def tune(data: Interactions, given: argparse.Namespace) -> Point:
    """Return the best settings on the validation users of the first split."""
    config = settings(given, "last", given.sizes[0], seed=given.first_seed)
    parts = split(data, config)
    default = resolved(parts[0], config)
    points = [
        Point(default.training.weight_decay * decay, default.model.inner_lr * rate)
        for decay, rate in itertools.product(given.factors, given.inner_lr_factors)
    ]
    if len(points) == 1:
        return points[0]
    results = train_runs([(parts, config.but(**point._asdict())) for point in points], test=False)
    values = [result.metrics()["valid"].get(METRICS[0], 0.0) for result in results]
    for point, value in zip(points, values, strict=True):
        row = {"inner_loss": given.inner_loss, **point._asdict(), "valid_recall@20": value}
        append(row, given.out / "trials.csv")
    return max(zip(values, points, strict=True))[1]


def run(
    data: Interactions, given: argparse.Namespace, policy: str, size: int, point: Point
) -> None:
    """Train one policy at one size on all splits, and add their rows."""
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    configs = [settings(given, policy, size, seed=seed, **point._asdict()) for seed in seeds]
    began = time.monotonic()
    results = train_runs([(split(data, config), config) for config in configs])
    seconds = time.monotonic() - began
    for seed, result in zip(seeds, results, strict=True):
        found = result.metrics()
        row: dict[str, Any] = {"inner_loss": given.inner_loss, "policy": policy, "size": size}
        row |= {"seed": seed, **point._asdict(), "epoch": result.best_epoch}
        row |= {"seconds": round(seconds / len(results), 2)}
        for part in ("valid", "test"):
            row |= {f"{part}_{metric}": found[part].get(metric) for metric in METRICS}
        append(row, given.out / "rows.csv")


def append(row: dict[str, Any], path: Path) -> None:
    """Add a row to a csv file and print it."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
