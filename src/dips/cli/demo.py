"""`dips demo`: compare static policies on the embedded synthetic data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dips.cli.compare import show
from dips.cli.screen import show_study
from dips.training.recipes import build_config

POLICIES = ["last", "reservoir", "mix:1", "hardest"]
SIZES = (2, 4, 8)
FOLDS = 2
INTRODUCTION = """A sketch keeps K interactions of each user's history. Which K should it keep?
A recommender adapts to the sketch and predicts the next interaction; lower RMSE is better."""
NEXT = """What to try next:
  dips compare synthetic --policies last,reservoir,influence --sizes 4 --every 1,4 --out results
  dips data list                         data sets by name
  dips train synthetic --policy learned --size 4 --out runs/learned-4
  dips train --help                      all settings"""


def demo(
    out: Annotated[Path, typer.Option(help="Results directory.")] = Path("demo"),
) -> None:
    """Compare static policies on the embedded synthetic data (under 3 minutes)."""
    from dips import api

    print(INTRODUCTION)
    with show_study() as on_progress:
        table = api.compare(
            api.load("synthetic"),
            POLICIES,
            SIZES,
            folds=FOLDS,
            out=out,
            on_progress=on_progress,
            source="synthetic",
            config=lambda policy: build_config("quick", flags={"policy": policy}),
        )
    show(table, POLICIES, "synthetic", out)
    print(NEXT)
