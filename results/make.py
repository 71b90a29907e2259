"""Make a table of the README where there is nothing but torch, numpy and safetensors.

PYTHONPATH=src python3 results/make.py explicit PREPARED.safetensors OUT [SECONDS]

The same as `dips compare` with the plans below; stops itself after SECONDS, and goes on when called
again with the same OUT. Prepare the data first, with `dips data prepare`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dips.api import load
from dips.study import Plan, Study, Update
from dips.training.config import build_config

STATIC = ["last", "reservoir", "mix:1", "mix:2", "mix:4", "hardest", "influence"]
PLANS = {
    "explicit": {"policies": STATIC, "sizes": [2, 4, 8], "every": [1, 4], "epochs": 12},
    "implicit": {
        "policies": ["last", "reservoir", "mix:2", "last-distinct", "frequent", "hardest"],
        "sizes": [4],
        "every": [1],
        "epochs": 8,
    },
    "implicit-influence": {"policies": ["influence"], "sizes": [4], "every": [1], "epochs": 8},
}


def main(kind: str, source: str, out: str, seconds: str = "1e9") -> None:
    """Carry out one plan, and print the means."""
    data, what, began = load(source), dict(PLANS[kind]), time.monotonic()
    settings = build_config(
        flags={"epochs": what.pop("epochs"), "reroll": 4}, implicit_data=not data.explicit
    )

    def watch(update: Update) -> None:
        print(f"{update.stage}: {update.done} of {update.total}", file=sys.stderr, flush=True)
        if time.monotonic() - began > float(seconds):
            raise KeyboardInterrupt

    plan = Plan(**what, seeds=[0, 1, 2], settings=settings, tune=8, tune_once=True)  # type: ignore[arg-type]
    for row in Study(data, plan, Path(out), source=source, watch=watch).result().summary:
        print(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
