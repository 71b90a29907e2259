"""Recompute the first tables, with short plans; new results use protocol.py.

PYTHONPATH=src python3 results/make.py PLAN PREPARED.safetensors OUT [SECONDS]

PLAN is paper, ml-1m-implicit, foursquare-nyc or amazon-cds. Stops after SECONDS,
and resumes when called again with the same OUT. Prepare the data first, with `dips data prepare`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from protocol import clock, run_comparison

from dips.api import load
from dips.data.interactions import Interactions
from dips.evaluation import tuning
from dips.studies.checks import split
from dips.studies.compare import ComparisonPlan, ComparisonTable
from dips.studies.result import RunResult
from dips.studies.run import STACK, train_runs
from dips.studies.run_directory import read_json, write_json
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

FOLDS = 3
ONLINE = ["last", "reservoir", "mix:1", "mix:2", "hardest"]
REPEATS = ["last", "reservoir", "mix:1", "mix:2", "last-distinct", "frequent", "hardest"]

IMPLICIT: dict[str, dict[str, Any]] = {
    "ml-1m-implicit": {
        "settings": {"epochs": 5},
        "stack": 20,
        "tuning": [
            {"policies": ["influence"], "trials": 4, "max_users": 500, "epochs": 3},
            {"policies": ONLINE, "trials": 8, "max_users": 2000},
        ],
        "alike": {},
        "policies": ONLINE,
    },
    "foursquare-nyc": {
        "settings": {"epochs": 4},
        "stack": 12,
        "tuning": [
            {
                "policies": ["influence"],
                "trials": 4,
                "max_users": 300,
                "epochs": 2,
                "longest": 600,
            },
            {"policies": REPEATS, "trials": 8},
        ],
        "alike": {},
        "policies": REPEATS,
    },
    "amazon-cds": {
        "settings": {"epochs": 3, "resketch_epochs": 2, "inner_steps": 4, "inner_lr": 0.5},
        "stack": 3,
        "tuning": [{"policies": ["last", "reservoir", "hardest"], "trials": 4, "max_users": 6000}],
        "alike": {"mix:1": "reservoir", "mix:2": "reservoir", "influence": "hardest"},
        "policies": ONLINE,
    },
}
"""Plans of the implicit table, cut to minutes of one GPU. `tuning`: how many settings each policy
tries, on how many users, with histories of at most what length; `alike`: policies that take the
settings of another one; `policies`: trained first, then `influence`; `stack`: maximum number of
stacked runs."""
PAPER: dict[str, dict[str, Any]] = {
    "both": {"inner_lr": 0.032, "learning_rate": 0.0107, "weight_decay": 4.6e-5},
    "dips": {"policy_lr": 3e-3},
    "dips@1": {"policy_lr": 3e-4},
}
"""The best of six settings at K = 4, every 1, on validation of seed 0 (LOG.md)."""
POINTS = tuning.trials(8, "implicit")
"""Tuning trials; the first has the defaults."""


def paper(data: Interactions, source: str, out: Path, tick: Callable[[str], None]) -> None:
    """Compare the paper's policies on MovieLens 1M, with full histories, tuned at K = 4."""
    flags = {"epochs": 10, "patience": 10, **PAPER["both"]}
    plan = ComparisonPlan(
        policies=["dips@1", "dips"], sizes=[4, 2, 8], every=[1, 4], folds=FOLDS,
        settings=lambda policy: build_config(
            "default", flags={**flags, **PAPER[policy], "policy": policy}
        ),
    )  # fmt: skip
    _show(run_comparison(data, plan, source, out, tick))


def implicit(
    data: Interactions, source: str, out: Path, tick: Callable[[str], None], name: str
) -> None:
    """Tune on a part of the users, then train on all of them, `influence` last."""
    what = IMPLICIT[name]
    before = {
        "repeat_feature": False,
        "recency_decay": False,
        "tie_embeddings": True,
    }  # the table is older than all of it
    settings = build_config(flags={**before, **what["settings"]})
    STACK["cuda"] = what["stack"]
    chosen: dict[str, dict[str, Any]] = {}
    for part in what["tuning"]:
        chosen |= tune(data, settings, out / "trials.json", tick, **part)
    chosen |= {policy: chosen[other] for policy, other in what["alike"].items()}
    for policies in (what["policies"], [*what["policies"], "influence"]):
        plan = ComparisonPlan(
            policies=policies, sizes=[4], every=[1], folds=FOLDS,
            settings=lambda policy: settings.but(**chosen[policy]),
        )  # fmt: skip
        _show(run_comparison(data, plan, source, out, tick))


def tune(
    data: Interactions,
    settings: TrainConfig,
    path: Path,
    tick: Callable[[str], None],
    *,
    policies: Sequence[str],
    trials: int,
    longest: int = 0,
    **changes: Any,
) -> dict[str, dict[str, Any]]:
    """The best of the same trials for every policy, by validation on the users of fold 0."""
    if longest:
        data = data.select(np.flatnonzero(data.lengths <= longest))
    lines: dict[str, float] = read_json(path) if path.exists() else {}
    points = POINTS[:trials]
    wanted = [(policy, point) for policy in policies for point in points]
    missing = [pair for pair in wanted if _line(*pair) not in lines]

    def keep(index: int, result: RunResult) -> None:
        lines[_line(*missing[index])] = 0.0 if result.error else result.valid["recall@20"]
        write_json(lines, path)

    if missing:
        common = settings.but(seed=0, **changes)
        configs = [common.but(policy=policy, **point) for policy, point in missing]
        jobs = [(split(data, config), config) for config in configs]
        stage = f"tuning {', '.join(policies)}"
        train_runs(jobs, test=False, on_epoch=lambda report: tick(stage), on_result=keep)
    return {
        policy: max(points, key=lambda point: lines[_line(policy, point)]) for policy in policies
    }


def _line(policy: str, point: dict[str, Any]) -> str:
    return json.dumps([policy, point])


def _show(table: ComparisonTable) -> None:
    for row in table.summary:
        print(row, flush=True)


def main(kind: str, source: str, out: str, seconds: str = "1e9") -> None:
    """Run one plan, and print the means."""
    data, place, tick = load(source), Path(out), clock(kind, float(seconds))
    place.mkdir(parents=True, exist_ok=True)
    if kind == "paper":
        paper(data, source, place, tick)
    else:
        implicit(data, source, place, tick, kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
