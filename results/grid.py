"""Compare `learned` with the best static policy over a grid of synthetic data.

    python results/grid.py [--seed S] [--users N] [--tasks T] [--sizes 2,4,8] [--every 1,4]
        [--points 0.1/0.5,0.5/0.5]

Generates data over a grid of durability and drift, with a new random seed unless one is given,
trains every policy with the same trials, and prints a table per task, size and period. Fails unless
`learned` is within 1 % of the best static policy at every point, and 3 % better in the middle. Most
users are test users: with a hundred, the best of seven policies leads by 1 or 2 % by chance. Needs
only torch, numpy and safetensors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dips.data.interactions import Interactions, Strings
from dips.data.splitting import by_users
from dips.data.synthetic import stream
from dips.evaluation.metrics import primary_metric
from dips.studies.progress import EpochReport
from dips.studies.run import train_runs
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

LEVELS = (0.1, 0.5, 0.9)
Point = tuple[float, float]
POINTS: list[Point] = list(itertools.product(LEVELS, LEVELS))  # (durability, drift)
MIDDLE = (0.5, 0.5)
NEVER_WORSE, BETTER = 0.01, 0.03
TEST = 3
"""Number of test users per training user."""
STATIC = {
    "explicit": ["last", "reservoir", "mix:1", "mix:2", "mix:4", "hardest"],
    "implicit": ["last", "reservoir", "mix:1", "mix:2", "mix:4", "last-distinct", "frequent"],
}
TRIALS: dict[str, list[dict[str, float]]] = {
    "explicit": [
        {"inner_lr": 0.1, "weight_decay": 3e-4},
        {"inner_lr": 0.2, "weight_decay": 1e-3},
    ],
    "implicit": [{}, {"learning_rate": 3e-3}],
}
"""Tuning trials of every policy."""


def worlds(seed: int, users: int, points: Sequence[Point], *, implicit: bool) -> list[Interactions]:
    """Return one data set per point, as views of one table, so that their runs can be stacked.

    Item indices are shared, but each run sees the data of one point only.
    """
    made = [
        stream(
            users=users,
            durability=kept,
            drift=drift,
            implicit=implicit,
            seed=seed + POINTS.index((kept, drift)),
        )
        for kept, drift in points
    ]
    shift = np.cumsum([0] + [len(world.item) for world in made[:-1]])
    whole = replace(
        made[0],
        item=np.concatenate([world.item for world in made]),
        rating=None if implicit else np.concatenate([world.rating for world in made]),
        time=np.concatenate([world.time for world in made]),
        starts=np.concatenate([w.starts + s for w, s in zip(made, shift, strict=True)]),
        lengths=np.concatenate([world.lengths for world in made]),
        warmup=np.concatenate([world.warmup for world in made]),
        user_rows=np.arange(users * len(made), dtype=np.int64),
        user_ids=Strings.of(map(str, range(users * len(made)))),
    )
    return [whole.select(np.arange(low, low + users)) for low in range(0, len(made) * users, users)]


def train(
    places: Sequence[Interactions],
    policies: Sequence[str],
    size: int,
    every: Sequence[int],
    task: str,
    more: dict[str, Any],
) -> dict[tuple[str, int], list[dict[str, float]]]:
    """Return validation and test of the best trial, by policy, period and point.

    If all trials diverge, both are infinitely bad.
    """
    sign = -1.0 if task == "implicit" else 1.0  # 1: lower is better
    worst = {"valid": sign * math.inf, "test": sign * math.inf, "sign": sign}
    share = 1 / (2 + TEST)
    parts = [by_users(place, (share, share, 1 - 2 * share), seed=0) for place in places]
    jobs: list[tuple[int, TrainConfig]] = []
    for policy, period, trial in itertools.product(policies, every, TRIALS[task]):
        flags = {"policy": policy, "size": size, "every": period, **more, **trial}
        config = build_config(flags=flags)
        jobs += [(place, config) for place in range(len(places))]

    def on_epoch(report: EpochReport) -> None:
        text = f"\r{report.runs} runs: epoch {report.epoch} of {report.epochs}"
        print(text, end="", file=sys.stderr, flush=True)

    results = train_runs([(parts[place], config) for place, config in jobs], on_epoch=on_epoch)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    best = {(p, e): [worst for _ in places] for p, e in itertools.product(policies, every)}
    for (place, config), result in zip(jobs, results, strict=True):
        if result.error or result.test is None:
            continue
        name = primary_metric(result.valid)
        valid, test = result.valid[name], result.test.metrics[name]
        found = best[config.sketch.policy, config.sketch.every]
        if sign * valid < sign * found[place]["valid"]:
            found[place] = {"valid": valid, "test": test, "sign": sign}
    return best


def gain(learned: dict[str, float], static: Sequence[dict[str, float]]) -> float:
    """Return the relative gain of `learned` over the best static policy on test."""
    sign = learned["sign"]
    best = min(sign * found["test"] for found in static)
    return (best - sign * learned["test"]) / abs(best)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train all policies, print the table, and return 1 if a point fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument(
        "--users", type=int, default=600, help="training users; as many validation users"
    )
    parser.add_argument("--tasks", default="explicit,implicit")
    parser.add_argument("--sizes", default="2,4,8")
    parser.add_argument("--every", default="1,4")
    parser.add_argument("--points", help="points of the grid: durability/drift, ...")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--policy", default="learned", help="policy to test")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting of the policy: name=value"
    )
    given = parser.parse_args(arguments)
    more = dict(pair.split("=") for pair in given.set)
    own = {name: _value(text) for name, text in more.items()}
    points = POINTS
    if given.points:
        named = {f"{kept}/{drift}": (kept, drift) for kept, drift in POINTS}
        wanted_points = given.points.split(",")
        if unknown := [text for text in wanted_points if text not in named]:
            parser.error(f"--points {unknown[0]}: there are {', '.join(named)}")
        points = [named[text] for text in wanted_points]
    all_users = given.users * (2 + TEST)
    print(
        f"seed {given.seed}, {given.users} of {all_users} users are training users of each point",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    failed = 0
    periods = list(map(int, given.every.split(",")))
    for task in given.tasks.split(","):
        places = worlds(given.seed, all_users, points, implicit=task == "implicit")
        for size in map(int, given.sizes.split(",")):
            began = time.monotonic()
            names = [n for n in STATIC[task] if not n.startswith("mix:") or int(n[4:]) < size]
            static = train(places, names, size, periods, task, {})
            middle = time.monotonic()
            found = train(places, [given.policy], size, periods, task, own)
            took = f"{middle - began:.0f} s static, {time.monotonic() - middle:.0f} s learned"
            print(f"\n{task}, K = {size} ({took})")
            for every, (place, point) in itertools.product(periods, enumerate(points)):
                ours = found[given.policy, every][place]
                others = {name: static[name, every][place] for name in names}
                best = min(others, key=lambda name: others[name]["sign"] * others[name]["test"])
                lead = gain(ours, list(others.values()))
                wanted = BETTER if point == MIDDLE else -NEVER_WORSE
                failed += lead < wanted
                rows.append({
                    "task": task, "size": size, "every": every, "durability": point[0],
                    "drift": point[1], "learned": ours["test"], "best": best,
                    "static": others[best]["test"], "gain": lead, "valid": ours["valid"],
                    "all": {name: value["test"] for name, value in others.items()},
                })  # fmt: skip
                print(
                    f"  every {every}, durability {point[0]:.1f} drift {point[1]:.1f}: learned "
                    f"{ours['test']:.4f}, best static {others[best]['test']:.4f} ({best}), "
                    f"{100 * lead:+.1f} %{'' if lead >= wanted else '  FAILED'}",
                    flush=True,
                )
            if given.json:
                given.json.write_text(json.dumps({"seed": given.seed, "rows": rows}, indent=1))
    print(f"\n{len(rows) - failed} of {len(rows)} points pass")
    return 1 if failed else 0


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


if __name__ == "__main__":
    sys.exit(main())
