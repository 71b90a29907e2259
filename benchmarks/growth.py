"""Measure how the time per interaction grows with items, interactions, sketch size and queue.

python -m benchmarks.growth [--axes items,size] [--policy learned] [--device cuda] [--items 1e4,1e6]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import product
from benchmarks.measure import in_child, print_json, table
from dips.data import synthetic

HERE = "benchmarks.growth"


@dataclass(frozen=True)
class Axis:
    """One quantity that grows while all others are fixed."""

    label: str
    values: tuple[int, ...]
    policy: str
    """Policy that is trained by default."""
    target: float
    """Maximum time per interaction at the last value, relative to that at `base`."""
    base: int = 0
    """Index of the reference value."""
    linear: bool = False
    """Whether the time may grow in proportion to the value."""
    users: int = 400
    events: int = 60
    """Mean interactions per user."""
    items: int = 2000
    batch_size: int | None = None
    """Predictions per step of both optimizers; None: decided from the data."""

    def job(self, name: str, value: int, policy: str) -> dict[str, Any]:
        """Return the job of a child process at one value."""
        world = {"users": self.users, "events": self.events, "items": self.items}
        flags: dict[str, Any] = {"policy": policy or self.policy}
        flags |= {"batch_size": self.batch_size, "policy_batch_size": self.batch_size}
        if name == "items":
            world["items"] = value
        elif name == "interactions":
            world["users"] = max(10, value // self.events)
        else:
            flags[name] = value
        return {"world": world, "flags": flags}


AXES = {
    "items": Axis("items", (10_000, 100_000, 1_000_000), "learned", 1.5, batch_size=2048),
    "interactions": Axis(
        "interactions", (100_000, 1_000_000, 4_000_000), "last", 1.2, events=100, items=5000
    ),
    "size": Axis(
        "sketch size K", (4, 16, 64, 256), "learned", 1.1, -2, linear=True, users=12, events=300
    ),
    "queue": Axis("queue Q", (1, 10, 100), "dips", 1.2, users=150, events=160),
}
"""Items have the batch size of large data. The largest sketch is compared with the second largest,
as small sketches cost almost nothing."""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.child:
        print(json.dumps(_child(json.loads(options.child))))
        return 0
    results = {}
    for name in options.axes.split(","):
        if name not in AXES:
            raise SystemExit(f"axis '{name}': choose from {', '.join(AXES)}")
        values = getattr(options, name) or AXES[name].values
        results[name] = grow(name, values, options.policy, options.device, options.clock)
        print(f"\n{report(name, results[name])}", flush=True)
    if options.figure:
        draw(results, options.figure)
    print_json(results, options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axes", default=",".join(AXES), help="quantities to vary")
    for name, axis in AXES.items():
        usual = ",".join(map(str, axis.values))
        parser.add_argument(f"--{name}", type=_numbers, help=f"{axis.label}: values ({usual})")
    parser.add_argument("--policy", default="", help="policy; by default that of each axis")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--clock", default="wall", help="wall, or cpu: time of all threads")
    parser.add_argument("--figure", type=Path, help="figure to write, with matplotlib")
    parser.add_argument("--json", type=Path, help="JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(float(number)) for number in text.split(","))


def grow(name: str, values: Sequence[int], policy: str, device: str, clock: str) -> dict[str, Any]:
    """Return the time per interaction at each value, each measured in a child process."""
    axis, points = AXES[name], []
    for value in values:
        job = axis.job(name, value, policy)
        found = in_child(HERE, {**job, "device": device})
        cost = found["epoch"][clock] / found["interactions"] * 1e6
        points.append({"value": value, "microseconds": cost, **found})
        print(f"{name} {value:,}: {cost:,.1f} us per interaction", file=sys.stderr, flush=True)
    base, last = points[axis.base], points[-1]
    ratio = last["microseconds"] / base["microseconds"]
    target = axis.target * (last["value"] / base["value"] if axis.linear else 1)
    about = {"policy": policy or axis.policy, "base": base["value"], "target": target}
    return {**about, "ratio": ratio, "met": ratio <= target, "points": points}


def _child(job: Mapping[str, Any]) -> dict[str, Any]:
    flags = {**job["flags"], **product.WHOLE, "device": job["device"], "epochs": 2}
    data = synthetic.stream(**job["world"])
    return product.whole_epochs(product.Setting.of(data, "default", flags))


def report(name: str, found: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table."""
    first = found["points"][0]["microseconds"]
    rows = [
        [
            f"{point['value']:,}",
            f"{point['microseconds']:,.1f}",
            f"{point['microseconds'] / first:.2f}",
            f"{point['peak_bytes'] / 2**20:,.0f}",
        ]
        for point in found["points"]
    ]
    head = [f"{AXES[name].label}, `{found['policy']}`", "us per interaction", "ratio", "peak MiB"]
    met = "met" if found["met"] else "missed"
    last = f"last over {found['base']:,}: {found['ratio']:.2f} (target {found['target']:g}, {met})"
    return f"{table(head, rows)}\n\n{last}"


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw one panel per axis, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no figure: pip install matplotlib", file=sys.stderr)
        return
    figure = Figure(figsize=(4 * len(results), 3.2), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, (name, found) in zip(panels, results.items(), strict=True):
        values = [point["value"] for point in found["points"]]
        panel.plot(values, [point["microseconds"] for point in found["points"]], marker="o")
        panel.set(xscale="log", xlabel=AXES[name].label, title=found["policy"])
        panel.set_ylabel("microseconds per interaction")
        if AXES[name].linear:
            panel.set_yscale("log")
        else:
            panel.set_ylim(0)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
