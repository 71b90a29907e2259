"""Is `learned` ever much worse than the best static policy, and better where it should be?

    python results/grid.py [--seed S] [--users N] [--tasks T] [--sizes 2,4,8] [--every 1,4]
        [--points 0.1/0.5,0.5/0.5]

Draws realistic streams over a grid of durability and drift, with a seed that nobody has seen unless
one is given, trains every policy with the same trials on all of them, and prints a table per task,
size and period. Fails unless `learned` is within 1 % of the best static policy in every place and
better by 3 % in the middle. Few users train, as many validate, and many test: with a hundred the
best of seven policies is ahead by 1 or 2 % through luck alone. Runs with torch, numpy and
safetensors alone.
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
from dips.evaluation.metrics import headline
from dips.studies.result import Moment
from dips.studies.run import run
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

DIALS = (0.1, 0.5, 0.9)
Point = tuple[float, float]
POINTS: list[Point] = list(itertools.product(DIALS, DIALS))  # (durability, drift)
MIDDLE = (0.5, 0.5)
NEVER_WORSE, BETTER = 0.01, 0.03
TEST = 3
"""Users who test, for each who trains."""
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
"""Settings that every policy tries on validation."""


def worlds(seed: int, users: int, points: Sequence[Point], *, implicit: bool) -> list[Interactions]:
    """One world per point, as views of one table, so that runs over all of them go side by side.

    An item has the same number in every world and means another thing: each run sees one only.
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
    """By policy and period, for every place: validation and test of the trial that validates best.

    Where all of them diverge, it is as bad as can be.
    """
    sign = -1.0 if task == "implicit" else 1.0  # 1: lower is better
    worst = {"valid": sign * math.inf, "test": sign * math.inf, "sign": sign}
    share = 1 / (2 + TEST)
    parts = [by_users(place, (share, share, 1 - 2 * share), seed=0) for place in places]
    jobs: list[tuple[int, TrainConfig]] = []
    for policy, period, trial in itertools.product(policies, every, TRIALS[task]):
        flags = {"policy": policy, "size": size, "every": period, **more, **trial}
        config = build_config(flags=flags, implicit_data=task == "implicit")
        jobs += [(place, config) for place in range(len(places))]

    def watch(moment: Moment) -> None:
        text = f"\r{moment.runs} runs: epoch {moment.epoch} of {moment.epochs}"
        print(text, end="", file=sys.stderr, flush=True)

    outcomes = run([(parts[place], config) for place, config in jobs], watch=watch)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    best = {(p, e): [worst for _ in places] for p, e in itertools.product(policies, every)}
    for (place, config), outcome in zip(jobs, outcomes, strict=True):
        if outcome.error or outcome.test is None:
            continue
        name = headline(outcome.valid)
        valid, test = outcome.valid[name], outcome.test.metrics[name]
        found = best[config.policy, config.every]
        if sign * valid < sign * found[place]["valid"]:
            found[place] = {"valid": valid, "test": test, "sign": sign}
    return best


def gain(learned: dict[str, float], static: Sequence[dict[str, float]]) -> float:
    """How much better `learned` is than the best static policy by test, relative to that."""
    sign = learned["sign"]
    best = min(sign * found["test"] for found in static)
    return (best - sign * learned["test"]) / abs(best)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument("--users", type=int, default=600, help="who train; as many validate")
    parser.add_argument("--tasks", default="explicit,implicit")
    parser.add_argument("--sizes", default="2,4,8")
    parser.add_argument("--every", default="1,4")
    parser.add_argument("--points", help="some of the nine: durability/drift, ...")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--policy", default="learned", help="what is judged")
    parser.add_argument("--set", action="append", default=[], help="a setting of it: name=value")
    given = parser.parse_args(arguments)
    more = dict(pair.split("=") for pair in given.set)
    own = {name: _value(text) for name, text in more.items()}
    points = POINTS
    if given.points:
        named = {f"{kept}/{drift}": (kept, drift) for kept, drift in POINTS}
        asked = given.points.split(",")
        if unknown := [text for text in asked if text not in named]:
            parser.error(f"--points {unknown[0]}: there are {', '.join(named)}")
        points = [named[text] for text in asked]
    everyone = given.users * (2 + TEST)
    print(f"seed {given.seed}, {given.users} of {everyone} users train in each world", flush=True)
    rows: list[dict[str, Any]] = []
    failed = 0
    periods = list(map(int, given.every.split(",")))
    for task in given.tasks.split(","):
        places = worlds(given.seed, everyone, points, implicit=task == "implicit")
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
                    f"{100 * lead:+.1f} %{'' if lead >= wanted else '  MISSED'}",
                    flush=True,
                )
            if given.json:
                given.json.write_text(json.dumps({"seed": given.seed, "rows": rows}, indent=1))
    print(f"\n{len(rows) - failed} of {len(rows)} places hold")
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
