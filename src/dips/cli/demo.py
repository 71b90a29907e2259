"""`dips demo`: the main job on the embedded world, small enough to watch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips import api
from dips.cli.compare import show
from dips.cli.screen import watch_study
from dips.training.recipes import build_config

POLICIES = ["last", "reservoir", "mix:1", "hardest"]
SIZES = (2, 4, 8)
SEEDS = (0, 1)
INTRODUCTION = """Every user's history is cut to K interactions. Which K should stay?
A recommender adapts to what was kept and predicts what comes next; lower RMSE is better."""
NEXT = """What to try next:
  dips compare synthetic --policies last,reservoir,influence --sizes 4 --every 1,4 --out results
  dips data list                         the datasets that have a name
  dips train synthetic --policy learned --size 4 --out runs/learned-4
  dips train --help                      every setting, with a sentence each"""


def demo(
    out: Annotated[Path, typer.Option(help="Where to keep the results.")] = Path("demo"),
) -> None:
    """Compare static policies on the embedded synthetic world (under 3 minutes)."""
    print(INTRODUCTION)
    with watch_study() as watch:
        table = api.compare(
            api.load("synthetic"),
            POLICIES,
            SIZES,
            seeds=SEEDS,
            out=out,
            watch=watch,
            source="synthetic",
            config=lambda policy: build_config("quick", flags={"policy": policy}),
        )
    show(table, POLICIES, "synthetic", out)
    print(NEXT)
