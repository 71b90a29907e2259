"""Train the runs of a comparison in parallel processes on a CPU, one run in each.

    PYTHONPATH=src python3 results/parallel_runs.py DATA OUT --policies last,hardest:8 \
        --sizes 4,8 --folds 5 --repeats 2 --workers 14 --max-seconds 540

Takes the arguments of `protocol.py`, without tuning. `protocol.py` with the same arguments then
trains what is missing and writes the tables. All runs of the first repeat come first.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import protocol

from dips.api import load
from dips.data.interactions import Interactions
from dips.studies.checks import split
from dips.studies.compare import ComparisonPlan, has_run, run_name
from dips.studies.run import train_runs
from dips.studies.run_directory import write_run
from dips.training.config import TrainConfig

_DATA: dict[str, Interactions] = {}
"""The data set of a worker process, by its name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train all runs that are missing, as far as the time allows."""
    parser = protocol.parser()
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    began, data = time.monotonic(), load(given.data)
    settings = protocol.chosen_settings(data, given.set, given.task, given.recipe)
    plan = ComparisonPlan(
        policies=given.policies.split(","), sizes=given.sizes, every=given.every,
        folds=given.folds, seed=given.seed, repeats=given.repeats, settings=settings,
    )  # fmt: skip
    keys = sorted(plan.runs(plan.cells()), key=lambda key: key.repeat)
    jobs = {given.out / "runs" / run_name(*key): plan.config(key, {}) for key in keys}
    missing = {
        place: config
        for place, config in jobs.items()
        if not has_run(place, {**config.to_dict(), "data": given.data})
    }
    print(f"{len(missing)} of {len(jobs)} runs are missing", flush=True)
    pool = ProcessPoolExecutor(given.workers, mp_context=get_context("spawn"))
    started = [
        pool.submit(train, given.data, config, str(place)) for place, config in missing.items()
    ]
    try:
        for found in as_completed(started, timeout=given.max_seconds - (time.monotonic() - began)):
            print(f"{time.monotonic() - began:.0f} s: {found.result()}", flush=True)
    except TimeoutError:
        print("stopped: the same command resumes", file=sys.stderr)
        for process in list(pool._processes.values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        return 130
    return 0


def train(source: str, config: TrainConfig, place: str) -> str:
    """Train one run, write its directory, and return its name and validation metrics."""
    if source not in _DATA:
        _DATA[source] = load(source)
    config = config.but(device="cpu")
    [result] = train_runs([(split(_DATA[source], config), config)])
    result.raise_if_diverged()
    write_run(result, Path(place), source=source, curve=False)
    return f"{Path(place).name} {result.metrics()['valid']}"


if __name__ == "__main__":
    sys.exit(main())
