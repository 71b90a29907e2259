"""`dips headroom`: parse, call dips.api, print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dips import api
from dips.cli.screen import print_json, watch_count
from dips.evaluation.headroom import AHEAD
from dips.studies import run_directory


def headroom(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[str | None, typer.Argument(help="Other data; else the run's own.")] = None,
    reader: Annotated[
        list[Path] | None,
        typer.Option(help="Another run of this size whose recommender reads too; may be repeated."),
    ] = None,
    ahead: Annotated[int, typer.Option(help="How many interactions the oracle sees.")] = AHEAD,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Say how much better sketches could be: last-K, this run's policy, and a hindsight oracle.

    At each refresh the oracle drops what the odd-numbered ones of the next
    interactions miss least; scored are predictions of even-numbered ones
    only, for all three, so no choice has seen what is scored. It knows the
    future but is greedy, and looks at the loss of training, not at the
    metric: it is no upper bound. Its lead on last-K has an interval over
    users, and where that includes 0 there is no share to speak of.

    Example: dips headroom runs/learned-4 --reader runs/last-4
    """
    other = None if data is None else api.load(data, side=run_directory.open_run(run).sides.names)
    with watch_count("looking ahead", "recommenders") as watch:
        found = api.headroom(
            run, other, readers=reader or (), ahead=ahead, device=device, watch=watch
        )
    if as_json:
        print_json(found)
        return
    _print(found)


def _print(found: Mapping[str, Any]) -> None:
    metric, policy = found["metric"], found["policy"]
    title = f"test {metric} of even-numbered interactions, K = {found['size']}"
    table = Table(title=f"{title}, {found['users']} users", title_justify="left")
    shown = {"last": "last", policy: "own", "oracle": "oracle"}
    if policy == "last":
        shown = {"last": "last", "oracle": "oracle"}
    share = [] if policy == "last" else [f"share of {policy}"]
    for name in ("recommender of", *shown, "lead (95 %)", *share):
        table.add_column(name, justify="left" if name == "recommender of" else "right")
    for row in found["rows"]:
        values = [f"{row[who][metric]:.4f}" for who in shown.values()]
        low, high = row["lead"][metric]
        told = [_share(row["share"][metric], high)] if share else []
        table.add_row(row["reader"], *values, f"{low:+.4f} to {high:+.4f}", *told)
    Console().print(table)
    if found["kept_policy"] != policy:
        print(f"{found['kept_policy']} chose, better on validation than what was learned")


def _share(share: float | None, most: float) -> str:
    """How much of the way to the oracle a policy goes, where there is a way."""
    if share is None:
        return "the oracle is no better" if most < 0 else "the lead may be chance"
    return "beyond the oracle" if share > 1 else f"{100 * share:.0f} %"
