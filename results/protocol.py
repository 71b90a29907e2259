"""One table of results by the protocol of docs/protocol.md; goes on where it was stopped.

    PYTHONPATH=src python3 results/protocol.py DATA OUT --policies last,learned --sizes 2,4,8 \
        --every 1,4 --seeds 5 --trials 8 --tune-once --max-seconds 540

Needs torch, numpy and safetensors alone where DATA is a file of `dips data prepare`. All policies
have the same epochs, patience and trials. Writes rows.csv, summary.csv, paired.csv, trials.csv and
origin.json (command, commit, settings, environment) into OUT, runs into OUT/runs; exits with 130
where time was over: the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dips.api import load
from dips.cli.origin import environment
from dips.data.interactions import Interactions
from dips.studies import run as experiment
from dips.studies.compare import Plan, Study, Table, Update, write_rows
from dips.studies.run_directory import read_json, write_json
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

ALIKE = {"epochs": 20, "patience": 20}
"""Nobody trains longer than the others unless --set says so, for all."""


def carry_out(
    data: Interactions, plan: Plan, source: str, out: Path, tick: Callable[[str], None]
) -> Table:
    """Tune, train and compare; `tick` is told how far it is, and may stop it."""

    def watch(update: Update) -> None:
        done = f"{update.done} of {update.total} {update.things}"
        tick(f"{update.stage} {', '.join(plan.policies)}: {done}")

    return Study(data, plan, out, source=source, watch=watch).result()


def clock(name: str, seconds: float) -> Callable[[str], None]:
    """Tells the time on standard error, and interrupts when it is over."""
    began = time.monotonic()

    def tick(text: str) -> None:
        spent = time.monotonic() - began
        print(f"{name} {spent:.0f} s: {text}", file=sys.stderr, flush=True)
        if spent > seconds:
            raise KeyboardInterrupt

    return tick


def commit() -> str:
    """The commit of this tree, marked where files differ from it; $DIPS_COMMIT where git is not."""
    asked = [["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "src", "results"]]
    try:
        head, changes = (
            subprocess.run(
                words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("DIPS_COMMIT", "unknown")
    return head + (" and changes" if changes else "")


def note(out: Path, source: str, typed: Sequence[str], about: dict[str, Any]) -> None:
    """Write where results come from, with all commands that have worked on them."""
    path = out / "origin.json"
    before = read_json(path).get("commands", []) if path.exists() else []
    now = {"command": shlex.join(["python3", *typed]), "commit": commit()}
    commands = before if before and before[-1] == now else [*before, now]
    name = source if ":" in source else Path(source).stem
    found = {"data": name, **now, "commands": commands}
    write_json({**found, **about, "environment": environment()}, path)


def chosen_settings(
    data: Interactions, sets: Sequence[str], task: str, recipe: str | None
) -> Callable[[str], TrainConfig]:
    """From a policy's name to its settings: NAME=VALUE is for all, POLICY:NAME=VALUE for one."""
    common: dict[str, Any] = {**ALIKE, "task": task}
    own: dict[str, dict[str, Any]] = {}
    for text in sets:
        name, _, value = text.partition("=")
        policy, _, field = name.rpartition(":")
        (own.setdefault(policy, {}) if policy else common)[field] = _value(value)

    def settings(policy: str) -> TrainConfig:
        flags = {**common, **own.get(policy, {}), "policy": policy}
        return build_config(recipe, flags=flags, implicit_data=not data.explicit)

    return settings


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def write_trials(out: Path) -> None:
    """Every setting that was tried, with its validation, as a table."""
    path = out / "tuning.json"
    if not path.exists():
        return
    trials = [(json.loads(name), valid) for name, valid in read_json(path)["trials"].items()]
    names = sorted({name for (_, _, _, point), _ in trials for name in point})
    rows = [
        {"policy": policy, "size": size, "every": every}
        | {name: point.get(name, "") for name in names}
        | {"valid": abs(valid)}
        for (policy, size, every, point), valid in trials
    ]
    write_rows(rows, out / "trials.csv")


def numbers(text: str) -> list[int]:
    """2,4,8."""
    return [int(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("data", help="a prepared file, or a name or source where polars is")
    found.add_argument("out", type=Path)
    found.add_argument("--policies", required=True, help="for example last,reservoir,learned")
    found.add_argument("--sizes", default="2,4,8", type=numbers)
    found.add_argument("--every", default="1,4", type=numbers)
    found.add_argument("--seeds", default="5", help="5 means 0 to 4; 7,8 means exactly these")
    found.add_argument("--trials", default=8, type=int, help="settings that every policy tries")
    found.add_argument("--tune-once", action="store_true", help="at the middle size, carried over")
    found.add_argument("--set", action="append", default=[], metavar="[POLICY:]NAME=VALUE")
    found.add_argument("--task", default="auto")
    found.add_argument("--recipe", default=None)
    found.add_argument("--stack", default=0, type=int, help="most runs side by side")
    found.add_argument("--max-seconds", default=1e9, type=float)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one table, or as much of it as time allows."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    given = parser().parse_args(typed)
    data = load(given.data)
    settings = chosen_settings(data, given.set, given.task, given.recipe)
    seeds = numbers(given.seeds) if "," in given.seeds else list(range(int(given.seeds)))
    plan = Plan(
        policies=given.policies.split(","), sizes=given.sizes, every=given.every, seeds=seeds,
        settings=settings, tune=given.trials, tune_once=given.tune_once,
    )  # fmt: skip
    if given.stack:
        experiment.STACK.update(cpu=given.stack, cuda=given.stack)
    plan.cells()  # refuses what cannot be before anything is written
    given.out.mkdir(parents=True, exist_ok=True)
    about = {
        "trials": given.trials,
        "tuned": "once" if given.tune_once else "in each cell",
        "settings": {policy: settings(policy).to_dict() for policy in plan.policies},
    }
    note(given.out, given.data, ["results/protocol.py", *typed], about)
    try:
        tick = clock(given.out.name, given.max_seconds)
        table = carry_out(data, plan, given.data, given.out, tick)
    except KeyboardInterrupt:
        print("stopped: the same command goes on", file=sys.stderr)
        return 130
    finally:
        write_trials(given.out)
    for row in table.summary:
        print(row, flush=True)
    print(f"verdict: {table.verdict()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
