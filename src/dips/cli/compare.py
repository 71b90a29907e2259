"""`dips compare`: train every policy at every size on every fold, and test the differences."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dips.cli.origin import write_origin
from dips.cli.screen import (
    print_best_rules,
    print_json,
    print_kept,
    print_pairs,
    print_summary,
    print_verdict,
    show_study,
)
from dips.cli.settings import Repeats, Seed, Settings, numbers, policy_names, with_settings
from dips.data.side_information import event_column_names

if TYPE_CHECKING:
    from dips.studies.compare import ComparisonTable

OWN = ("policy", "size", "every", "periods", "seed", "fold", "repeat", "max_seconds")
"""Settings that the comparison itself sets."""


@with_settings(leave_out=OWN)
def compare(
    data: Annotated[str, typer.Argument(help="A catalogue name, a file, a directory or a zip.")],
    policies: Annotated[
        str,
        typer.Option(
            help="Policies to compare, for example last,reservoir; 'dips train --help' names them."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Results directory; the same command resumes it.")],
    settings: Settings,
    sizes: Annotated[str, typer.Option(help="Sketch sizes, for example 2,4,8.")] = "4",
    every: Annotated[str, typer.Option(help="Refresh periods, for example 1,4.")] = "1",
    folds: Annotated[
        int | None,
        typer.Option(
            help="How many of the five folds of users; five test every user once. "
            "\\[default: 5; with --split time: 1]",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    repeats: Repeats = 1,
    tune: Annotated[int, typer.Option(help="Trials on validation for each policy and cell.")] = 0,
    tune_once: Annotated[
        bool, typer.Option("--tune-once", help="Tune each policy at its middle size only.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Train every policy at every size on every fold, and test the differences.

    A policy is called better if the interval over users excludes zero, if
    p is below 0.05 after Holm's correction over the table, if all folds
    agree in sign, and if the t-interval over five folds excludes zero.
    best-rule is the static policy that is best on validation in each fold.

    All policies have the same settings of recommender and training.
    A flag or a recipe is for all of them; --tune chooses for each.

    Example: dips compare ml-100k --policies last,reservoir --sizes 2,4,8 --out results
    """
    from dips import api

    names = policy_names(policies)
    whole = api.load(data, side=event_column_names(settings().model.side))
    with show_study() as on_progress:
        table = api.compare(
            whole,
            names,
            numbers("sizes", sizes),
            numbers("every", every),
            folds=folds,
            seed=seed,
            repeats=repeats,
            out=out,
            tune=tune,
            tune_once=tune_once,
            on_start=partial(api.print_time, whole, setting="--max-users "),
            on_progress=on_progress,
            source=data,
            config=lambda policy: settings(policy=policy),
        )
    write_origin(out)
    if as_json:
        print_json(table.to_dict())
        return
    show(table, names, data, out)


def show(table: ComparisonTable, names: list[str], data: str, out: Path) -> None:
    """Print the tables of a comparison."""
    from dips.evaluation.comparison import BEST_RULE

    metrics = list(dict.fromkeys(row["metric"] for row in table.summary))
    for metric in metrics[:2]:
        print_summary(table.summary, metric, f"test {metric} on {data}", table.paired)
    for against in ("last" if "last" in names else names[0], BEST_RULE):
        print_pairs(table.summary, table.paired, metrics[0], against)
    print_best_rules(table.best_rules)
    print_kept(table.rows)
    print(f"all rows, pairs and runs are in {out}; the figure is {out}/figure.png")
    print_verdict(table.verdict())
