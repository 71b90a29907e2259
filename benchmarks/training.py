"""Compare training times with the paper's Algorithm 1, step by step, and with `last`.

python -m benchmarks.training [--data FILE_OR_NAME] [--device cuda] [--task implicit] [--to-quality]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import product
from benchmarks.algorithm1_timing import time_steps, train_epoch
from benchmarks.measure import data_by_default, in_child, on_file, print_json, table
from dips.data import prepared, synthetic
from dips.data.interactions import Interactions

PHASES = ("rollout", "recommender", "credit", "policy", "validation")
FLAGS = ("size", "every", "queue", "device", "task", "max_users")
"""Options that are settings of a run."""
SAME_LOSS = "literal, linearised"
"""Algorithm 1 with the inner loss `linearised`."""
HERE = "benchmarks.training"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.child:
        print(json.dumps(_child(json.loads(options.child))))
        return 0
    spec = options.data or (data_by_default("ml-1m") if options.task != "implicit" else None)
    with on_file(spec, lambda: _made(options)) as file:
        results = measure(str(file), options)
    print(f"\n{report(results)}\n")
    print_json(results, options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a prepared file, or a name; default: $DIPS_DATA's ml-1m")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--task", help="explicit or implicit; default: as the data")
    parser.add_argument("--policies", default="last,dips,learned", help="policies to train")
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--queue", type=int, default=100)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs, after a first one")
    parser.add_argument("--max-users", type=int, help="maximum number of users")
    parser.add_argument("--made-users", type=int, default=600, help="users of synthetic data")
    parser.add_argument("--made-items", type=int, default=3700, help="items of synthetic data")
    parser.add_argument(
        "--seconds-literal",
        type=float,
        default=30.0,
        help="time limit for timing steps of Algorithm 1",
    )
    parser.add_argument(
        "--to-quality", action="store_true", help="train until as good as Algorithm 1"
    )
    parser.add_argument(
        "--faster", type=float, default=1.0, help="factor of the learning rates of Algorithm 1"
    )
    parser.add_argument("--profile", action="store_true", help="also profile rollout and policy")
    parser.add_argument("--clock", default="wall", help="wall, or cpu: time of all threads")
    parser.add_argument("--json", type=Path, help="JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def _made(options: argparse.Namespace) -> Interactions:
    """Return synthetic users with histories as long as those of MovieLens 1M."""
    return synthetic.stream(
        users=options.made_users,
        items=options.made_items,
        events=165,
        implicit=options.task == "implicit",
    )


def measure(file: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run all measurements, each in a child process."""
    flags = {name: getattr(options, name) for name in FLAGS}
    policies, clock = options.policies.split(","), options.clock
    whole = {**flags, **product.WHOLE, "epochs": options.epochs + 1}
    plain = {
        "policy": "dips",
        "repeat_feature": False,
        "recency_decay": False,
        "tie_embeddings": True,
    }  # the paper's recommender
    paper = {"file": file, "recipe": "paper", "flags": {**flags, **plain}}
    rows: dict[str, Any] = {}
    if options.every == 1:
        job = {"do": "steps", **paper, "seconds": options.seconds_literal}
        rows["literal"] = _log("literal", in_child(HERE, job))
        if rows["literal"]["listwise"]:  # with the inner loss that `dips` takes for clicks
            job["flags"] = {**job["flags"], "inner_loss": "linearised"}
            rows[SAME_LOSS] = _log(SAME_LOSS, in_child(HERE, job))
    for policy in policies:
        own = {"file": file, "recipe": "default", "flags": {**whole, "policy": policy}}
        job = {"do": "epochs", **own, "profile": options.profile}
        rows[policy] = _log(policy, in_child(HERE, job))
    for row in rows.values():
        taken = row["epoch"][clock]
        row["interactions_per_second"] = row["interactions"] / taken
        for other in {"literal", SAME_LOSS, "last"} & rows.keys():
            row[f"times_{other}"] = rows[other]["epoch"][clock] / taken
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    results = {**flags, "clock": clock, **machine, "rows": rows}
    if options.to_quality:
        literal = {"do": "epoch", **paper, "faster": options.faster}
        results["quality"] = _quality(literal, policies, clock)
    return results


def _quality(literal: Mapping[str, Any], policies: Sequence[str], clock: str) -> dict[str, Any]:
    """Return the validation of Algorithm 1 after one epoch, and the time of others to reach it."""
    first = _log("literal, one epoch", in_child(HERE, literal))
    found: dict[str, Any] = {"literal": first}
    for policy in policies:
        own = {"recipe": "default", "flags": {**literal["flags"], "policy": policy}}
        job = {"do": "until", "file": literal["file"], **own, "target": first["valid"]}
        found[policy] = _log(f"{policy}, until as good", in_child(HERE, job))
        found[policy]["times_faster"] = first["took"][clock] / found[policy]["took"][clock]
    return found


def _log(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Print a result on standard error, and return it."""
    print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def _child(job: dict[str, Any]) -> dict[str, Any]:
    data = prepared.open_prepared(Path(job["file"]))
    setting = product.Setting.of(data, job["recipe"], job["flags"])
    if job["do"] == "steps":
        return time_steps(setting, job["seconds"])
    if job["do"] == "epoch":
        return train_epoch(setting, job["faster"])
    if job["do"] == "until":
        return product.until(setting, job["target"])
    found = product.whole_epochs(setting)
    if job["profile"]:
        for name, text in product.profiles(setting).items():
            print(f"{setting.config.sketch.policy}, {name}:\n{text}")
    phases = product.phases(setting)
    return {**found, "phases": {name: took._asdict() for name, took in phases.items()}}


def report(results: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table."""
    clock = results["clock"]
    compared = [name for name in ("literal", SAME_LOSS, "last") if name in results["rows"]]
    head = ["training", "interactions/s", *(f"x {name}" for name in compared)]
    head += ["epoch s", "peak MiB", "update after", *(f"{name} s" for name in PHASES)]
    lines = []
    for name, row in results["rows"].items():
        ratios = [_number(row.get(f"times_{other}")) for other in compared]
        took = _number(row["epoch"][clock])
        shares = [_number(row["phases"].get(phase, {}).get(clock)) for phase in PHASES]
        pace, peak = f"{row['interactions_per_second']:,.0f}", f"{row['peak_bytes'] / 2**20:,.0f}"
        lines.append([f"`{name}`", pace, *ratios, took, peak, _updates(row), *shares])
    text = table(head, lines)
    if "quality" in results:
        text += "\n\n" + _as_good(results["quality"], clock)
    return text


def _updates(row: Mapping[str, Any]) -> str:
    if row["update_interval"]:
        return f"{row['user_batch']} users, {row['update_interval']} step"
    return f"{row['batch_size']} predictions, full histories"


def _as_good(quality: Mapping[str, Any], clock: str) -> str:
    """Return the times to equal quality as a Markdown table."""
    lines = []
    for name, row in quality.items():
        factor = _number(row.get("times_faster", 1.0)) if row["reached"] else "not reached"
        epochs, took = f"`{name}`, {row['epochs']} epoch(s)", _number(row["took"][clock])
        lines.append([epochs, f"{row['valid']:.4f}", took, factor])
    return table(["until as good", "validation", "seconds", "times faster"], lines)


def _number(value: float | None) -> str:
    """Return a number with three significant digits."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


if __name__ == "__main__":
    sys.exit(main())
