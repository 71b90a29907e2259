"""What each part of `learned` is worth: its defaults with one thing changed at a time.

    PYTHONPATH=src python3 results/ablations.py DATA OUT [--size 4] [--every 1] [--seeds 2] \
        [--only credit,queue] [--max-seconds S]

DATA is as for results/protocol.py, or `world:DURABILITY,DRIFT,USERS,SEED` for a made one. Leaves a
file for each variant in OUT/variants, and ablations.csv: test and validation, mean over splits, and
the difference to the default with its 95 % interval over users. Exits with 130 where time was over:
the same command goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from protocol import clock, note

from dips.api import load
from dips.data.interactions import Interactions
from dips.data.synthetic import stream
from dips.evaluation.comparison import Cell, UserSums, compare_pairs
from dips.evaluation.crossed import by_user
from dips.evaluation.metrics import headline
from dips.experiment import run
from dips.preflight import split
from dips.rundir import read_json, write_json
from dips.study import write_rows
from dips.training.recipes import build_config

DRAWN = {"choice": "sampled", "credit": "discount"}
DEFAULT = ("default", "learned")
VARIANTS: dict[tuple[str, str], dict[str, Any]] = {
    DEFAULT: {},
    ("policy", "last"): {"policy": "last"},
    ("policy", "the paper's network"): {"policy": "dips", "credit": "survival", "queue": 50},
    ("policy", "dips"): {"policy": "dips"},
    ("credit", "identity"): {"credit": "identity"},
    ("credit", "discount"): {"credit": "discount"},
    **{("queue", f"Q = {length}"): {"queue": length} for length in (1, 5, 20, 100)},
    ("ghosts", "none"): {"ghosts": 0},
    ("estimator", "straight-through, drawn"): DRAWN,
    ("estimator", "gumbel, drawn"): {**DRAWN, "estimator": "gumbel"},
    ("estimator", "reinforce, drawn"): {**DRAWN, "estimator": "reinforce"},
    ("network", "residuals"): {"residual": 1},
    ("network", "no residuals"): {"residual": 0},
    ("training", "one walk an epoch"): {"walks": 1},
    ("training", "no caution"): {"caution": 0.0},
    ("training", "policy rate 1e-3"): {"policy_rate": 1e-3},
    ("training", "policy rate 1e-2"): {"policy_rate": 1e-2},
    ("reading", "no fading"): {"fading": 0},
    ("reading", "nothing comes back"): {"returning": 0},
}
"""By theme and name, what differs from the default. The drawn ones walk online only."""


def data_of(name: str) -> Interactions:
    """A prepared file, a source, or a made world."""
    kind, _, dials = name.partition(":")
    if kind != "world":
        return load(name)
    try:
        durability, drift, users, seed = map(float, dials.split(","))
    except ValueError:
        raise SystemExit(
            f"{name}: give world:DURABILITY,DRIFT,USERS,SEED, as 0.5,0.5,500,7"
        ) from None
    return stream(users=int(users), durability=durability, drift=drift, seed=int(seed))


def trained(
    data: Interactions, flags: dict[str, Any], seeds: Sequence[int], tick: Callable[[str], None]
) -> list[dict[str, Any]]:
    """For every split validation and test, and what each of its users adds."""
    defaults = {"policy": "learned", "rival": "", "epochs": 20, "patience": 20}
    configs = [
        build_config(
            "default", flags={**defaults, **flags, "seed": seed}, implicit_data=not data.explicit
        )
        for seed in seeds
    ]
    jobs = [(split(data, config), config) for config in configs]
    outcomes = run(jobs, watch=lambda moment: tick(f"epoch {moment.epoch} of {moment.epochs}"))
    rows = []
    for (parts, config), outcome in zip(jobs, outcomes, strict=True):
        if outcome.test is None:
            raise SystemExit(f"seed {config.seed}, {flags}: {outcome.error}")
        sums = by_user(outcome.test, parts[2])
        rows.append({
            "seed": config.seed, "valid": outcome.valid, "test": outcome.test.metrics,
            "users": list(sums.users), "count": sums.count.tolist(),
            "sums": {name: total.tolist() for name, total in sums.sums.items()},
        })  # fmt: skip
    return rows


def pooled(rows: Sequence[dict[str, Any]]) -> list[UserSums]:
    """What `trained` found, for paired tests."""
    return [
        UserSums(
            row["users"],
            np.array(row["count"]),
            {name: np.array(total) for name, total in row["sums"].items()},
        )
        for row in rows
    ]


def table(found: dict[tuple[str, str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A line for each variant: means, and variant minus default, paired over users."""
    own, lines = found[DEFAULT], []
    metric = headline(own[0]["valid"])
    for (theme, name), rows in found.items():
        line: dict[str, Any] = {"theme": theme, "variant": name, "metric": metric}
        for part in ("valid", "test"):
            line[part] = float(np.mean([row[part][metric] for row in rows]))
        line |= {"diff": 0.0, "low": 0.0, "high": 0.0}
        if rows is not own:
            cells = {Cell(name, 0, 0): pooled(rows), Cell("", 0, 0): pooled(own)}
            pair = next(row for row in compare_pairs(cells) if row["metric"] == metric)
            line |= {key: pair[key] for key in ("diff", "low", "high")}
        lines.append(line)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, and write the table of what there is."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default=4, type=int)
    parser.add_argument("--every", default=1, type=int)
    parser.add_argument("--seeds", default=2, type=int)
    parser.add_argument("--only", default="", help="themes, as a,b; none: all")
    parser.add_argument("--max-seconds", default=1e9, type=float)
    given = parser.parse_args(typed)
    data, tick = data_of(given.data), clock(given.out.name, given.max_seconds)
    place = given.out / "variants"
    place.mkdir(parents=True, exist_ok=True)
    note(given.out, given.data, ["results/ablations.py", *typed], {})
    themes = {DEFAULT[0], *(given.only.split(",") if given.only else (t for t, _ in VARIANTS))}
    found, code = {}, 0
    for (theme, name), flags in VARIANTS.items():
        path = place / f"{theme}-{name.replace(' ', '-')}.json"
        try:
            if theme in themes and not path.exists():
                same = {"size": given.size, "every": given.every}
                write_json(trained(data, {**same, **flags}, range(given.seeds), tick), path)
        except KeyboardInterrupt:
            code = 130
            break
        if path.exists():
            found[theme, name] = read_json(path)
    if DEFAULT in found:
        lines = table(found)
        write_rows(lines, given.out / "ablations.csv")
        for line in lines:
            print(line, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
