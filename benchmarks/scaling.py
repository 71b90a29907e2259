"""Measure the speed-up of training one run with several processes.

python -m benchmarks.scaling [--processes 1,2] [--policies last,learned] [--device cuda] [--users N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from benchmarks.measure import table
from dips.data import synthetic
from dips.numerics.process_group import open_process_group
from dips.studies.checks import device_of, split
from dips.studies.run import train_runs
from dips.training.recipes import build_config

HERE = "benchmarks.scaling"
WHOLE = {
    "policy_warmup_epochs": 0,
    "policy_freeze_epochs": 0,
    "revert_tolerance": 0.0,
    "baselines": (),
    "patience": 99,
}
"""Settings with which every epoch trains the policy, without baselines."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.child:
        _child(json.loads(options.child))
        return 0
    results = {policy: scale(policy, options) for policy in options.policies.split(",")}
    for policy, found in results.items():
        print(f"\n{report(policy, found)}")
    print(json.dumps(results))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="1,2", help="numbers of processes")
    parser.add_argument("--policies", default="last,learned", help="policies to train")
    parser.add_argument(
        "--users", type=int, default=2000, help="synthetic users, with about 100 events"
    )
    parser.add_argument("--items", type=int, default=5000, help="synthetic items")
    parser.add_argument(
        "--epochs", type=int, default=4, help="epochs; the fastest after the first is reported"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--clock", default="wall", help="wall, or cpu: time of all processes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def scale(policy: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the speed with each number of processes, one thread each."""
    points = []
    for processes in map(int, options.processes.split(",")):
        names = ("users", "items", "epochs", "device", "clock")
        job = {name: getattr(options, name) for name in names}
        found = _launch(processes, {**job, "policy": policy})
        points.append({"processes": processes, **found})
        pace = f"{found['interactions_per_second']:,.0f} interactions/s"
        print(f"{policy}, {processes} processes: {pace}", file=sys.stderr, flush=True)
    return points


def _launch(processes: int, job: Mapping[str, Any]) -> dict[str, Any]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *launcher, "-m", HERE, "--child", json.dumps(job)]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=threads, check=False)
    if done.returncode:
        raise SystemExit(f"{HERE}: {processes} processes with {json.dumps(job)} failed, see above")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _child(job: Mapping[str, Any]) -> None:
    flags = {**WHOLE, **{name: job[name] for name in ("policy", "epochs", "device")}}
    config = build_config("default", None, flags)
    parts = split(synthetic.stream(users=job["users"], items=job["items"], events=100), config)
    clock = time.process_time if job["clock"] == "cpu" else time.perf_counter
    seconds: list[float] = []
    with open_process_group(device_of(config)) as process_group:
        train_runs(
            [(parts, config)],
            test=False,
            on_epoch=lambda report: seconds.append(clock()),
            process_group=process_group,
        )
        fastest = min(later - earlier for earlier, later in pairwise(seconds))
        mean = float(process_group.all_reduce(torch.tensor(fastest))) / process_group.world_size
    if process_group.is_main:
        print(json.dumps({"interactions_per_second": len(parts[0]) / mean}))


def report(policy: str, points: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table; efficiency is the speed-up divided by the number of processes."""
    first = points[0]
    rows = []
    for point in points:
        ratio = point["interactions_per_second"] / first["interactions_per_second"]
        efficiency = ratio * first["processes"] / point["processes"]
        pace = f"{point['interactions_per_second']:,.0f}"
        rows.append([str(point["processes"]), pace, f"{ratio:.2f}", f"{efficiency:.0%}"])
    return table([f"processes, `{policy}`", "interactions/s", "ratio", "efficiency"], rows)


if __name__ == "__main__":
    sys.exit(main())
