"""`dips demo`: does a learned sketch beat a list of the newest? On the embedded synthetic data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dips.cli.compare import show
from dips.cli.origin import write_origin
from dips.cli.screen import show_study
from dips.data.atomic_write import atomic_write
from dips.evaluation.equal_quality_size import equal_quality_size
from dips.training.recipes import build_config

if TYPE_CHECKING:
    from dips.studies.compare import ComparisonTable
    from dips.training.config import TrainConfig

DATA = "synthetic"
POLICIES = ["last", "reservoir", "hardest:8", "learned"]
SIZES = (2, 4, 8)
LARGER = (16, 32)
"""Further sizes of `last`: how many of the newest does it take?"""
SHOWN = 4
"""The sketch size that the verdict and the story are about."""
LEARNED: dict[str, Any] = {"initial_policy": "pretrained", "baselines": ()}
"""`learned` starts at the parameters that come with the package; rules are compared beside it."""
INTRODUCTION = """A sketch keeps K interactions of each user's history. Which K should it keep?
A recommender adapts to the sketch and predicts the next rating; lower RMSE is better.
last keeps the newest K, reservoir a random sample, hardest:8 those that were predicted worst
(older ones count less), and learned what a small network chooses. One fold of users.
"""
NEXT = """What to try next:
  dips data describe FILE                your own table: columns read, lengths of histories
  dips train FILE --size 8 --out runs/learned-8      learned beside its baselines, with a verdict
  dips compare FILE --policies last,hardest:8,learned --sizes 4,8 --out results    five folds
  dips data list                         public data sets by name
  dips train --help                      all settings"""


def demo(
    out: Annotated[Path, typer.Option(help="Results directory.")] = Path("demo"),
) -> None:
    """Compare a learned sketch with rules on the embedded synthetic data (under 2 minutes).

    Writes the tables, a figure, a report and the story of one user.
    """
    from dips import api
    from dips.report.story_page import story_page
    from dips.studies.run_directory import read_split

    print(INTRODUCTION)
    data = api.load(DATA)

    def compare(policies: list[str], sizes: tuple[int, ...], place: Path) -> ComparisonTable:
        with show_study() as on_progress:
            table = api.compare(
                data, policies, sizes, folds=1, out=place, on_progress=on_progress, source=DATA,
                config=settings_of,
            )  # fmt: skip
        write_origin(place)
        return table

    larger = compare(["last"], LARGER, out / "last")
    table = compare(POLICIES, SIZES, out)
    show(table, POLICIES, DATA, out)
    print(_equal_size([*table.summary, *larger.summary]))

    run = out / "runs" / f"learned-k{SHOWN}-t1-f0-r0"
    user = min(read_split(run)["test"])
    with atomic_write(out / "story.html") as part:
        part.write_text(story_page(api.story(run, user).last(24)), encoding="utf-8")
    api.report([out], out / "report.html")
    print(f"Open in a browser: {out}/report.html, and the story of user {user}: {out}/story.html")
    print(NEXT)


def settings_of(policy: str) -> TrainConfig:
    """Return the settings of a policy in the demo: six epochs."""
    return build_config(
        "quick", flags={"policy": policy, **(LEARNED if policy == "learned" else {})}
    )


def _equal_size(summary: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of the newest predict as well as a learned sketch."""
    rows = {row["size"]: row["mean"] for row in summary if row["policy"] == "last"}
    sizes = sorted(rows)
    (target,) = (
        row["mean"] for row in summary if (row["policy"], row["size"]) == ("learned", SHOWN)
    )
    equal = equal_quality_size(sizes, [rows[size] for size in sizes], target, lower_is_better=True)
    return f"Equal quality: learned at {SHOWN} predicts as well as last at {equal}."
