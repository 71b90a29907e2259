"""Attribute gains to sketches and recommender, and measure the headroom of results.

    PYTHONPATH=src python3 results/gains.py RESULTS OUT [--policies last,learned] [--data DATA] \
        [--sizes 2,4] [--every 1] [--ahead 10] [--device cuda] [--max-seconds S]

RESULTS is a directory of results/protocol.py or `dips compare` with its runs. For every size and
period the recommenders of both policies are scored with the sketches of both (pooled over folds:
crossed.csv, effects.csv). The second policy is compared with last-K and a hindsight oracle
(headroom.csv: one row per run, as fold/repeat, and recommender). Needs only torch, numpy and
safetensors; resumes where it stopped.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from protocol import clock, numbers, write_origin

from dips.api import load
from dips.data.interactions import Interactions
from dips.evaluation.comparison import Cell
from dips.evaluation.headroom import share_of_oracle_gain
from dips.evaluation.settings import LOOKAHEAD
from dips.studies.compare import run_name, write_table
from dips.studies.cross import cross_runs
from dips.studies.headroom import headroom
from dips.studies.run_directory import is_finished, read_json, write_json

Pairs = dict[str, list[Path]]
"""By fold and repeat, as in 0/1, the runs of both policies."""


def cells_of(runs: Path, policies: Sequence[str]) -> dict[tuple[int, int], Pairs]:
    """Return by size and period the folds with finished runs of both policies."""
    found: dict[tuple[int, int], Pairs] = {}
    for place in sorted(runs.glob("*")):
        if (name := re.search(r"-k(\d+)-t(\d+)-f(\d+)-r(\d+)$", place.name)) is None:
            continue
        size, every, fold, repeat = map(int, name.groups())
        both = [runs / run_name(Cell(policy, size, every), fold, repeat) for policy in policies]
        if place == both[-1] and all(map(is_finished, both)):
            found.setdefault((size, every), {})[f"{fold}/{repeat}"] = both
    return dict(sorted(found.items()))


def measure(
    pairs: Pairs, policies: Sequence[str], data: Interactions | None, given: Any
) -> dict[str, Any]:
    """Return the crossed scores over all folds, and the headroom of each fold and repeat."""
    both = [(old, new) for old, new in pairs.values()]
    crossed = cross_runs(both, (policies[0], policies[1]), data, device=given.device)
    headrooms = {}
    for run, (old, new) in pairs.items():
        headrooms[run] = headroom(
            new, data, recommenders=[old], ahead=given.ahead, device=given.device
        )
    return {"crossed": crossed, "headroom": headrooms}


def headroom_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per fold, recommender and metric, and the mean over folds."""
    rows = [
        {"recommender": row["recommender"], "run": run, "metric": metric, "last": last}
        | {"own": row["own"][metric], "oracle": row["oracle"][metric]}
        for run, fold in found.items()
        for row in fold["rows"]
        for metric, last in row["last"].items()
    ]
    for recommender, metric in dict.fromkeys((row["recommender"], row["metric"]) for row in rows):
        same = [row for row in rows if (row["recommender"], row["metric"]) == (recommender, metric)]
        means = {name: float(np.mean([row[name] for row in same])) for name in ORDER}
        rows.append({"recommender": recommender, "run": "mean", "metric": metric, **means})
    return [
        {**row, "share": share_of_oracle_gain(row["metric"], *(row[name] for name in ORDER))}
        for row in rows
    ]


ORDER = ("last", "own", "oracle")


def write_tables(found: dict[str, Any], out: Path) -> None:
    """Write all results so far as CSV."""
    tables: dict[str, list[dict[str, Any]]] = {"crossed": [], "effects": [], "headroom": []}
    for name, one in found.items():
        size, every = (int(part) for part in name.split("/"))
        cell = {"size": size, "every": every}
        crossed = one["crossed"]
        tables["crossed"] += [{**cell, "n": crossed["splits"], **row} for row in crossed["rows"]]
        tables["effects"] += [{**cell, **row} for row in crossed["effects"]]
        tables["headroom"] += [{**cell, **row} for row in headroom_rows(one["headroom"])]
    for name, rows in tables.items():
        write_table(rows, out / f"{name}.csv")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every size and period that has runs."""
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("results", type=Path)
    found.add_argument("out", type=Path)
    found.add_argument("--policies", default="last,learned")
    found.add_argument("--data", default=None, help="the new place of the runs' data")
    found.add_argument("--sizes", default=[], type=numbers, help="default: all")
    found.add_argument("--every", default=[], type=numbers, help="default: all")
    found.add_argument("--ahead", default=LOOKAHEAD, type=int)
    found.add_argument("--device", default=None)
    found.add_argument("--max-seconds", default=1e9, type=float)
    typed = sys.argv[1:] if arguments is None else list(arguments)
    given = found.parse_args(typed)
    policies = given.policies.split(",")
    cells = {
        f"{size}/{every}": pairs
        for (size, every), pairs in cells_of(given.results / "runs", policies).items()
        if size in (given.sizes or [size]) and every in (given.every or [every])
    }
    if len(policies) != 2 or not cells:
        print(f"{given.results}/runs has no finished runs of two policies", file=sys.stderr)
        return 2
    data = None if given.data is None else load(given.data)
    tick = clock("gains", given.max_seconds)
    path = given.out / "gains.json"
    done: dict[str, Any] = read_json(path) if path.exists() else {}
    write_origin(
        given.out, given.results.name, ["results/gains.py", *typed], {"ahead": given.ahead}
    )
    try:
        for name, pairs in cells.items():
            if name not in done:
                tick(f"K/every {name}, {len(pairs)} runs")
                done[name] = measure(pairs, policies, data, given)
                write_json(done, path)
    except KeyboardInterrupt:
        print("stopped: the same command resumes", file=sys.stderr)
        return 130
    finally:
        if done:
            write_tables(read_json(path), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
