"""Train and compare policies by the protocol of docs/protocol.md; resumes where it stopped.

    PYTHONPATH=src python3 results/protocol.py DATA OUT --policies last,learned --sizes 2,4,8 \
        --every 1,4 --folds 5 --repeats 2 --trials 8 --tune-once --max-seconds 540

Needs only torch, numpy and safetensors if DATA is a file of `dips data prepare`. All policies
have the same epochs, patience and trials. Writes rows.csv, summary.csv, paired.csv, best_rules.csv,
trials.csv and origin.json (command, commit, settings, environment) into OUT, runs into OUT/runs;
exits with 130 if the time is over; the same command resumes. With --finished-only and --trials 0
nothing is trained: the tables have the cells of which all runs are in OUT/runs.
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
from dips.data.splitting import FOLDS
from dips.errors import RunError
from dips.studies.compare import (
    Comparison,
    ComparisonPlan,
    ComparisonTable,
    RunKey,
    has_run,
    make_table,
    run_name,
    table_rows,
    write_table,
    write_tables,
)
from dips.studies.progress import StudyProgress
from dips.studies.run import STACK
from dips.studies.run_directory import read_json, write_json
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

SHARED = {"epochs": 20, "patience": 20}
"""Settings of all policies; --set changes them."""


def run_comparison(
    data: Interactions, plan: ComparisonPlan, source: str, out: Path, tick: Callable[[str], None]
) -> ComparisonTable:
    """Tune, train and compare; `tick` is called with the progress and may interrupt."""

    def report(progress: StudyProgress) -> None:
        done = f"{progress.done} of {progress.total} {progress.unit}"
        tick(f"{progress.phase} {', '.join(plan.policies)}: {done}")

    return Comparison(data, plan, out, source=source, on_progress=report).run()


def finished_table(plan: ComparisonPlan, source: str, out: Path) -> ComparisonTable:
    """Write and return the tables of the cells of which all runs are finished.

    Raises:
        RunError: No cell is finished, or a run has other settings.
    """
    whole: dict[RunKey, Path] = {}
    for cell in plan.cells():
        places = {key: out / "runs" / run_name(*key) for key in plan.runs([cell])}
        wanted = {key: {**plan.config(key, {}).to_dict(), "data": source} for key in places}
        if all(has_run(place, wanted[key]) for key, place in places.items()):
            whole |= places
    if not whole:
        raise RunError(f"{out / 'runs'} has all runs of no cell: leave --finished-only out")
    table = make_table(*table_rows(whole), plan.rules())
    write_tables(table, out)
    return table


def clock(name: str, seconds: float) -> Callable[[str], None]:
    """Return a function that prints progress on standard error, and interrupts after `seconds`."""
    began = time.monotonic()

    def tick(text: str) -> None:
        spent = time.monotonic() - began
        print(f"{name} {spent:.0f} s: {text}", file=sys.stderr, flush=True)
        if spent > seconds:
            raise KeyboardInterrupt

    return tick


def commit() -> str:
    """Return the commit of this tree, marked if files differ; without git, $DIPS_COMMIT."""
    commands = [["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "src", "results"]]
    try:
        head, changes = (
            subprocess.run(
                words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("DIPS_COMMIT", "unknown")
    return head + (" and changes" if changes else "")


def write_origin(out: Path, source: str, typed: Sequence[str], about: dict[str, Any]) -> None:
    """Write origin.json: data, commit, environment and all commands so far."""
    path = out / "origin.json"
    before = read_json(path).get("commands", []) if path.exists() else []
    now = {"command": shlex.join(["python3", *typed]), "commit": commit()}
    commands = before if before and before[-1] == now else [*before, now]
    name = source if ":" in source else Path(source).stem
    found = {"data": name, **now, "commands": commands}
    write_json({**found, **about, "environment": environment()}, path)


def chosen_settings(
    data: Interactions, sets: Sequence[str], task: str | None, recipe: str | None
) -> Callable[[str], TrainConfig]:
    """Return a function from a policy to its settings: NAME=VALUE or POLICY:NAME=VALUE."""
    common: dict[str, Any] = {**SHARED, "task": task}
    own: dict[str, dict[str, Any]] = {}
    for text in sets:
        name, _, value = text.partition("=")
        policy, _, field = name.rpartition(":")
        (own.setdefault(policy, {}) if policy else common)[field] = _value(value)

    def settings(policy: str) -> TrainConfig:
        flags = {**common, **own.get(policy, {}), "policy": policy}
        return build_config(recipe, flags=flags)

    return settings


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def write_trials(out: Path) -> None:
    """Write all tuning trials with their validation metric, as trials.csv."""
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
    write_table(rows, out / "trials.csv")


def numbers(text: str) -> list[int]:
    """Return the numbers of a list such as 2,4,8."""
    return [int(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("data", help="a prepared file; with polars also a name or a source")
    found.add_argument("out", type=Path)
    found.add_argument("--policies", required=True, help="for example last,reservoir,learned")
    found.add_argument("--sizes", default="2,4,8", type=numbers)
    found.add_argument("--every", default="1,4", type=numbers)
    found.add_argument("--folds", default=FOLDS, type=int, help="how many of the five folds")
    found.add_argument("--seed", default=0, type=int, help="of the permutation and of training")
    found.add_argument("--repeats", default=1, type=int, help="training runs on each fold")
    found.add_argument("--trials", default=8, type=int, help="tuning trials of every policy")
    found.add_argument("--tune-once", action="store_true", help="tune at the middle size only")
    found.add_argument("--set", action="append", default=[], metavar="[POLICY:]NAME=VALUE")
    found.add_argument("--task", default=None)
    found.add_argument("--recipe", default=None)
    found.add_argument("--stack", default=0, type=int, help="maximum number of stacked runs")
    found.add_argument("--max-seconds", default=1e9, type=float)
    found.add_argument("--finished-only", action="store_true", help="train nothing")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, as far as the time allows."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    given = parser().parse_args(typed)
    if given.finished_only and given.trials:
        parser().error("--finished-only is for runs without tuning: add --trials 0")
    data = load(given.data)
    settings = chosen_settings(data, given.set, given.task, given.recipe)
    plan = ComparisonPlan(
        policies=given.policies.split(","), sizes=given.sizes, every=given.every,
        folds=given.folds, seed=given.seed, repeats=given.repeats,
        settings=settings, tune=given.trials, tune_once=given.tune_once,
    )  # fmt: skip
    if given.stack:
        STACK.update(cpu=given.stack, cuda=given.stack)
    plan.cells()  # raises for bad plans, before anything is written
    given.out.mkdir(parents=True, exist_ok=True)
    about = {
        "trials": given.trials,
        "tuned": "once" if given.tune_once else "in each cell",
        "settings": {policy: settings(policy).to_dict() for policy in plan.policies},
    }
    try:
        if given.finished_only:
            table = finished_table(plan, given.data, given.out)
            write_origin(given.out, given.data, ["results/protocol.py", *typed], about)
        else:
            write_origin(given.out, given.data, ["results/protocol.py", *typed], about)
            tick = clock(given.out.name, given.max_seconds)
            table = run_comparison(data, plan, given.data, given.out, tick)
    except KeyboardInterrupt:
        print("stopped: the same command resumes", file=sys.stderr)
        return 130
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        write_trials(given.out)
    for row in table.summary:
        print(row, flush=True)
    print(f"verdict: {table.verdict()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
