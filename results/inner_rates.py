"""Is another inner learning rate better than the default? Choose one on validation, score on test.

    python results/inner_rates.py DATA OUT [--policies last,hardest:8] [--sizes 8] [--folds 5]

Each policy is trained with the default inner learning rate times each factor; all other settings
are those that `dips` decides from the data. Of each fold the factor that is best on validation is
the tuned rate. Writes rows.csv (one row per run), tuned.csv (one row per policy and size: test
with the default and with the tuned rates, in percent) and origin.json into OUT.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from inner_losses import factors
from protocol import numbers, write_origin

from dips.api import load
from dips.data.interactions import Interactions
from dips.evaluation.metrics import LOWER_IS_BETTER, primary_metric
from dips.studies.checks import resolved, split
from dips.studies.compare import write_table
from dips.studies.run import train_runs
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train all runs and write both tables."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(typed)
    data = load(given.data)
    given.out.mkdir(parents=True, exist_ok=True)
    write_origin(given.out, given.data, ["results/inner_rates.py", *typed], {})
    rows: list[Row] = []
    for policy in given.policies.split(","):
        for size in given.sizes:
            rows += train(data, given, policy, size)
            write_table(rows, given.out / "rows.csv")
            write_table(tuned(rows), given.out / "tuned.csv")
            print(tuned(rows)[-1], flush=True)
    return 0


def train(data: Interactions, given: argparse.Namespace, policy: str, size: int) -> list[Row]:
    """Return one row per fold and factor."""
    shared = {"policy": policy, "size": size, "baselines": (), "max_users": given.users}
    jobs: list[tuple[int, float, TrainConfig]] = []
    for fold in range(given.folds):
        config = build_config(flags={**shared, "fold": fold, "task": given.task})
        rate = resolved(split(data, config)[0], config).model.inner_lr
        jobs += [(fold, factor, config.but(inner_lr=rate * factor)) for factor in given.factors]
    rows = []
    for fold, factor, config in jobs:
        [result] = train_runs([(split(data, config), config)])
        found = result.metrics()
        metric = primary_metric(found["valid"])
        rows.append(
            {
                "policy": policy, "size": size, "fold": fold, "factor": factor,
                "inner_lr": config.model.inner_lr, "metric": metric,
                "valid": found["valid"][metric], "test": found["test"][metric],
            }
        )  # fmt: skip
    return rows


def tuned(rows: Sequence[Row]) -> list[Row]:
    """Return the gain of tuning per policy and size.

    `gain_percent` is the mean over folds of the relative gain on test of the factor that is best on
    validation; positive is better. `folds` has the factor of each fold.
    """
    found = []
    for policy, size in dict.fromkeys((row["policy"], row["size"]) for row in rows):
        own = [row for row in rows if (row["policy"], row["size"]) == (policy, size)]
        metric = own[0]["metric"]
        sign = -1 if metric in LOWER_IS_BETTER else 1
        default, best = [], []
        for fold in dict.fromkeys(row["fold"] for row in own):
            same = [row for row in own if row["fold"] == fold]
            default.append(next(row for row in same if row["factor"] == 1.0))
            best.append(max(same, key=lambda row: sign * row["valid"]))
        gains = [
            100 * sign * (after["test"] / before["test"] - 1)
            for before, after in zip(default, best, strict=True)
        ]
        found.append(
            {
                "policy": policy, "size": size, "metric": metric,
                "default": round(mean(row["test"] for row in default), 5),
                "tuned": round(mean(row["test"] for row in best), 5),
                "gain_percent": round(mean(gains), 3),
                "folds": " ".join(f"{row['factor']:g}" for row in best),
            }
        )  # fmt: skip
    return found


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("data")
    found.add_argument("out", type=Path)
    found.add_argument("--policies", default="last")
    found.add_argument("--sizes", default="8", type=numbers)
    found.add_argument("--folds", default=5, type=int)
    found.add_argument("--factors", default="0.5,1,2", type=factors, help="of the default rate")
    found.add_argument("--task", choices=("explicit", "implicit"))
    found.add_argument("--users", type=int, help="use this many users of the data only")
    return found


if __name__ == "__main__":
    sys.exit(main())
