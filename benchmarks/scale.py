"""One epoch over a stream as large as the Netflix Prize: how long it takes, and in which memory.

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
from benchmarks.measure import Clock, hand_over, kilobytes, table
from dips.data import synthetic
from dips.data.interactions import Interactions
from dips.data.splitting import by_users
from dips.studies.checks import device_of
from dips.training.recipes import build_config
from dips.training.trainer import TrainingState

SHARES = (0.98, 0.01, 0.01)
"""Nearly all of the stream is there to train on."""
CHUNK = 1 << 16
"""Users who are made together."""
GIB = 2**30
TARGETS = {
    "cuda": {"seconds": 180, "host_peak_bytes": 16 * GIB, "gpu_peak_bytes": 40 * GIB},
    "cpu": {"host_peak_bytes": 4 * GIB},
}
"""What figures should stay below: with 100 million interactions on a GPU, 10 on the CPU."""
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
    _tell(f"{len(data):,} interactions made in {made:,.1f} s")
    flags = {"policy": options.policy, "device": options.device, "users": options.user_batch}
    flags |= {"batch": options.batch, "policy_batch_size": options.policy_batch_size}
    results = {"made_seconds": made, **measure(data, flags)}
    results["targets"] = judged(results)
    print(f"\n{report(results)}\n")
    hand_over(results, options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interactions", type=float, default=0, help="1e8, on the CPU 1e7")
    parser.add_argument("--users", type=float, default=0, help="one for 100 interactions")
    parser.add_argument("--items", type=float, default=18_000)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--policy", default="learned", help="whose training is measured")
    parser.add_argument("--user-batch", type=int, default=0, help="users a walk; 0: as it would be")
    parser.add_argument("--batch", type=int, default=0, help="predictions a step; 0: as usual")
    parser.add_argument("--policy-batch-size", type=int, default=0, help="the same for the policy")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    return parser


def _tell(line: str) -> None:
    """Show progress to those who wait."""
    print(line, file=sys.stderr, flush=True)


def measure(data: Interactions, flags: Mapping[str, Any]) -> dict[str, Any]:
    """One epoch in which everything learns, with its validation; nothing is warm."""
    everything = {**flags, **product.WHOLE, "epochs": 1, "baseline": ""}
    config = build_config("default", None, everything, implicit_data=not data.explicit)
    setting = product.Setting.fitted(by_users(data, SHARES, seed=config.seed), config)
    device, config = device_of(config), setting.config
    clock = Clock(device)
    run = product.Run.begin(setting)
    began = clock.took().wall
    _tell(f"ready to train after {began:,.1f} s, {config.users or 'all'} users a walk")
    run.train(lambda fitting: None, lambda fitting: _tell(_way(fitting, clock)))
    seconds = clock.took().wall
    progress, count = run.fitting.progress, len(setting.train)
    return {
        "policy": config.policy,
        "device": device,
        "interactions": count,
        "users": setting.train.users,
        "items": data.items,
        "users_a_walk": config.users,
        "batch": config.batch,
        "policy_batch_size": config.policy_batch_size,
        "threads": torch.get_num_threads(),
        "start_seconds": began,
        "seconds": seconds,
        "interactions_per_second": count / seconds,
        "host_peak_bytes": kilobytes("VmHWM") * 1024,
        **_gpu_peaks(device),
        "train_loss": progress.history[-1]["train_loss"][0],
        "valid": progress.history[-1]["valid"][0],
    }


def _way(fitting: TrainingState, clock: Clock) -> str:
    """How far an epoch has come; after its end nothing is left of it."""
    taken = sum(fitting.progress.taken)
    far = f"{taken:,} learned from" if taken else "all learned from"
    return f"{far} after {clock.took().wall:,.0f} s"


def _gpu_peaks(device: str) -> dict[str, int]:
    """What the process took from the GPU for tensors, and what of it they filled at once."""
    if not device.startswith("cuda"):
        return {"gpu_peak_bytes": 0, "gpu_filled_bytes": 0}
    taken, filled = torch.cuda.max_memory_reserved, torch.cuda.max_memory_allocated
    return {"gpu_peak_bytes": taken(device), "gpu_filled_bytes": filled(device)}


def report(results: Mapping[str, Any]) -> str:
    """A line for the README, and which targets are met; a missed one is no error."""
    pace, took = f"{results['interactions_per_second']:,.0f}", f"{results['seconds']:,.1f}"
    sizes = [f"{results[name]:,}" for name in ("interactions", "users", "items")]
    peaks = [f"{results[f'{where}_peak_bytes'] / GIB:.2f}" for where in ("host", "gpu")]
    head = ["one epoch", "interactions", "users", "items", "interactions/s", "seconds"]
    line = table(
        [*head, "host GiB", "GPU GiB"], [[f"`{results['policy']}`", *sizes, pace, took, *peaks]]
    )
    verdicts = [_verdict(figure, *target) for figure, target in results["targets"].items()]
    return "\n".join([line, "", *verdicts])


def judged(results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """The figures that have a target, each with what it should stay below."""
    limits = TARGETS[results["device"].split(":")[0]]
    return {figure: (results[figure], limit) for figure, limit in limits.items()}


def _verdict(figure: str, found: float, limit: float) -> str:
    scale, unit = (GIB, "GiB") if figure.endswith("bytes") else (1, "s")
    met = "met" if found < limit else "missed"
    return f"{figure}: {found / scale:,.2f} {unit} (target {limit / scale:g} {unit}, {met})"


if __name__ == "__main__":
    sys.exit(main())
