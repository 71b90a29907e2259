"""`dips cross`: print the metrics of two runs' recommenders with both runs' sketches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dips.cli.options import AllowPlugins
from dips.cli.screen import kept_baseline, print_json


def cross(
    first: Annotated[Path, typer.Argument(help="A run directory, for example of last.")],
    second: Annotated[Path, typer.Argument(help="Another run directory, for example of learned.")],
    data: Annotated[
        str | None, typer.Argument(help="Other data; by default FIRST's test users.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; by default cuda if there is a GPU.")
    ] = None,
    allow_plugins: AllowPlugins = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Score the recommenders of two runs with the sketches of both policies.

    Prints the metric of each recommender with the sketches of each policy,
    and the differences (second minus first) with 95 % intervals over users.
    The last line splits the difference into parts from sketches and from
    the recommender: means over both orders of changing them (Shapley).
    Training and validation users of either run are not scored.

    Example: dips cross runs/last-4 runs/learned-4
    """
    from dips import api
    from dips.studies import run_directory

    other = None
    if data is not None:
        trained = run_directory.open_run(first, allow_plugins=allow_plugins)
        other = api.load(data, side=trained.side.names)
    found = api.cross(first, second, other, device=device, allow_plugins=allow_plugins)
    if as_json:
        print_json(found)
        return
    _print(found)


def _print(found: Mapping[str, Any]) -> None:
    first, second, metric = found["old"], found["new"], found["metric"]
    value = {(row["recommender"], row["sketches"]): row[metric] for row in found["rows"]}
    table = Table(title=f"test {metric}, {found['users']} users", title_justify="left")
    table.add_column("recommender of")
    for policy in (first, second):
        table.add_column(f"sketches of {policy}", justify="right")
    for recommender in (first, second):
        values = [f"{value[recommender, policy]:.4f}" for policy in (first, second)]
        table.add_row(recommender, *values)
    Console().print(table)
    changes = Table(title=f"{second} minus {first} (95 %)", title_justify="left")
    for name in ("changed", "difference", "interval", "p"):
        changes.add_column(name, justify="left" if name == "changed" else "right")
    for row in found["effects"]:
        if row["metric"] == metric:
            label = f"{row['changed']}, {row['while']}" if row["while"] else row["changed"]
            interval = f"{row['low']:+.4f} to {row['high']:+.4f}"
            changes.add_row(label, f"{row['diff']:+.4f}", interval, f"{row['p']:.4f}")
    Console().print(changes)
    for name, kept in found["kept_policies"].items():
        for policy in set(kept) - {found["policies"][name]}:
            print(f"{name}: {kept_baseline(policy)}")
    share = found["shares"]
    print(
        f"difference in {metric}: {share['both']:+.4f}, of which {share['sketches']:+.4f} from the "
        f"sketches and {share['recommender']:+.4f} from the recommender "
        "(means over both orders: Shapley)"
    )
