"""`dips headroom`: compare the sketches of last, of a run's policy and of a hindsight oracle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dips.cli.options import AllowPlugins
from dips.cli.screen import kept_baseline, print_json, show_count
from dips.evaluation.settings import LOOKAHEAD


def headroom(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[
        str | None, typer.Argument(help="Other data; by default the run's test users.")
    ] = None,
    recommender_of: Annotated[
        list[Path] | None,
        typer.Option(
            help="Another run of this size whose recommender is scored too; may be repeated."
        ),
    ] = None,
    ahead: Annotated[
        int, typer.Option(help="How many interactions ahead the oracle sees.")
    ] = LOOKAHEAD,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; by default cuda if there is a GPU.")
    ] = None,
    allow_plugins: AllowPlugins = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Compare the sketches of last-K, of a run's policy, and of a hindsight oracle.

    The oracle sees the odd-numbered interactions among the next ones, and
    drops the entries whose removal least increases their loss. Only
    even-numbered interactions are scored, for all three. The oracle is
    greedy and minimises the training loss: it is no upper bound. Its gain
    over last-K has a 95 % interval over users; if that includes 0, no
    share of the gain is reported.

    Example: dips headroom runs/learned-4 --recommender-of runs/last-4
    """
    from dips import api
    from dips.studies import run_directory

    other = None
    if data is not None:
        trained = run_directory.open_run(run, allow_plugins=allow_plugins)
        other = api.load(data, side=trained.side.names)
    with show_count("scoring", "recommenders") as on_progress:
        found = api.headroom(
            run,
            other,
            recommenders=recommender_of or (),
            ahead=ahead,
            device=device,
            allow_plugins=allow_plugins,
            on_progress=on_progress,
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
    for name in ("recommender of", *shown, "oracle gain (95 %)", *share):
        table.add_column(name, justify="left" if name == "recommender of" else "right")
    for row in found["rows"]:
        values = [f"{row[name][metric]:.4f}" for name in shown.values()]
        low, high = row["lead"][metric]
        reached = [_share(row["share"][metric], high)] if share else []
        table.add_row(row["recommender"], *values, f"{low:+.4f} to {high:+.4f}", *reached)
    Console().print(table)
    if found["kept_policy"] != policy:
        print(kept_baseline(found["kept_policy"]))


def _share(share: float | None, most: float) -> str:
    """Describe the share of the oracle's gain that a policy reaches."""
    if share is None:
        return "the oracle is no better" if most < 0 else "the gain may be chance"
    return "better than the oracle" if share > 1 else f"{100 * share:.0f} %"
