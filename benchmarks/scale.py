"""Measure time and memory of one epoch on data as large as the Netflix Prize.

python -m benchmarks.scale [--interactions 1e8 --users 1e6 --items 18000] [--device cuda] [--json F]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import product
from benchmarks.measure import Clock, kilobytes, print_json, table
from dips.data import synthetic
from dips.data.interactions import Interactions
from dips.data.splitting import by_users
from dips.studies.checks import device_of
from dips.training.recipes import build_config
from dips.training.trainer import TrainingState

SHARES = (0.98, 0.01, 0.01)
"""Nearly all users are training users."""
CHUNK = 1 << 16
"""Users that are generated together."""
GIB = 2**30
TARGETS = {
    "cuda": {"seconds": 180, "host_peak_bytes": 16 * GIB, "gpu_peak_bytes": 40 * GIB},
    "cpu": {"host_peak_bytes": 4 * GIB},
}
"""Upper limits: with 100 million interactions on a GPU, 10 million on the CPU."""
USUAL = {"cuda": 1e8, "cpu": 1e7}


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    count = options.interactions or USUAL[options.device.split(":")[0]]
    users = int(options.users or count / 100)
    clock = Clock("cpu")
    data = synthetic.stream(
        users=users, items=int(options.items), events=round(count / users), chunk=CHUNK
    )
    made = clock.took().wall
    _log(f"{len(data):,} interactions generated in {made:,.1f} s")
    flags = {"policy": options.policy, "device": options.device, "user_batch": options.user_batch}
    flags |= {"batch_size": options.batch_size, "policy_batch_size": options.policy_batch_size}
    results = {"made_seconds": made, **measure(data, flags)}
    results["targets"] = with_targets(results)
    print(f"\n{report(results)}\n")
    print_json(results, options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interactions", type=float, default=0, help="1e8, on the CPU 1e7")
    parser.add_argument("--users", type=float, default=0, help="one for 100 interactions")
    parser.add_argument("--items", type=float, default=18_000)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--policy", default="learned", help="policy to train")
    parser.add_argument("--user-batch", type=int, help="users per rollout")
    parser.add_argument("--batch-size", type=int, help="predictions per step")
    parser.add_argument("--policy-batch-size", type=int, help="decisions per policy step")
    parser.add_argument("--json", type=Path, help="JSON file to write")
    return parser


def _log(line: str) -> None:
    """Print progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def measure(data: Interactions, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Train one epoch of recommender and policy, with validation and without warm-up."""
    full = {**flags, **product.WHOLE, "epochs": 1, "baselines": ()}
    config = build_config("default", None, full)
    setting = product.Setting.resolved(by_users(data, SHARES, seed=config.training.seed), config)
    device, config = device_of(config), setting.config
    clock = Clock(device)
    run = product.Run.begin(setting)
    began = clock.took().wall
    users = config.training.user_batch or "all"
    _log(f"ready to train after {began:,.1f} s, {users} users per rollout")
    run.train(lambda state: None, lambda state: _log(_progress(state, clock)))
    seconds = clock.took().wall
    progress, count = run.state.progress, len(setting.train)
    return {
        "policy": config.sketch.policy,
        "device": device,
        "interactions": count,
        "users": setting.train.users,
        "items": data.items,
        "user_batch": config.training.user_batch,
        "batch_size": config.training.batch_size,
        "policy_batch_size": config.policy_training.policy_batch_size,
        "threads": torch.get_num_threads(),
        "start_seconds": began,
        "seconds": seconds,
        "interactions_per_second": count / seconds,
        "host_peak_bytes": kilobytes("VmHWM") * 1024,
        **_gpu_peaks(device),
        "train_loss": progress.history[-1]["train_loss"][0],
        "valid": progress.history[-1]["valid"][0],
    }


def _progress(state: TrainingState, clock: Clock) -> str:
    """Describe the progress of an epoch; the count is reset at its end."""
    taken = sum(state.progress.predictions)
    done = f"{taken:,} predictions" if taken else "all predictions"
    return f"{done} after {clock.took().wall:,.0f} s"


def _gpu_peaks(device: str) -> dict[str, int]:
    """Return the peaks of reserved and of allocated GPU memory."""
    if not device.startswith("cuda"):
        return {"gpu_peak_bytes": 0, "gpu_filled_bytes": 0}
    taken, filled = torch.cuda.max_memory_reserved, torch.cuda.max_memory_allocated
    return {"gpu_peak_bytes": taken(device), "gpu_filled_bytes": filled(device)}


def report(results: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table, and which targets are reached."""
    pace, took = f"{results['interactions_per_second']:,.0f}", f"{results['seconds']:,.1f}"
    sizes = [f"{results[name]:,}" for name in ("interactions", "users", "items")]
    peaks = [f"{results[f'{where}_peak_bytes'] / GIB:.2f}" for where in ("host", "gpu")]
    head = ["one epoch", "interactions", "users", "items", "interactions/s", "seconds"]
    line = table(
        [*head, "host GiB", "GPU GiB"], [[f"`{results['policy']}`", *sizes, pace, took, *peaks]]
    )
    verdicts = [_verdict(figure, *target) for figure, target in results["targets"].items()]
    return "\n".join([line, "", *verdicts])


def with_targets(results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the results that have a target, each with its upper limit."""
    limits = TARGETS[results["device"].split(":")[0]]
    return {figure: (results[figure], limit) for figure, limit in limits.items()}


def _verdict(figure: str, found: float, limit: float) -> str:
    scale, unit = (GIB, "GiB") if figure.endswith("bytes") else (1, "s")
    met = "met" if found < limit else "missed"
    return f"{figure}: {found / scale:,.2f} {unit} (target {limit / scale:g} {unit}, {met})"


if __name__ == "__main__":
    sys.exit(main())
