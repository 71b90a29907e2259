"""`dips data`: list, fetch, describe and prepare data sets, by calling `dips.data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from dips.data import catalog, filtering, prepared
from dips.data.description import describe as description
from dips.data.interactions import Interactions
from dips.data.readers import layouts
from dips.data.readers.columns import ColumnNames
from dips.data.side_information import parse_names
from dips.errors import ConfigError

app = typer.Typer(
    help="List, fetch, describe and prepare data sets.", no_args_is_help=True, add_completion=False
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")]
_LAYOUTS = ", ".join(layouts.LAYOUTS)
_RECIPES = "; ".join(f"{name}: {recipe.about}" for name, recipe in filtering.RECIPES.items())


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """List the data sets of the catalogue."""
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "about": known.about,
            "recipe": known.recipe,
            "url": known.url,
            "md5": known.md5,
            "by_hand": known.by_hand,
            "here": catalog.is_available(name),
        }
        for name, known in catalog.CATALOG.items()
    ]
    rows += [
        {"name": name, "about": about, "recipe": None, "url": None, "here": True}
        for name, about in catalog.SYNTHETIC.items()
    ]
    if as_json:
        _print_json({"datasets": rows})
        return
    table = Table("name", "what it is", "filter recipe", "available")
    for row in rows:
        table.add_row(row["name"], row["about"], row["recipe"], "yes" if row["here"] else "")
    Console().print(table)
    Console().print("Get one with: dips data fetch NAME", highlight=False)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name of 'dips data list'.")],
    origin: Annotated[
        Path | None, typer.Option("--from", help="A file or directory downloaded by hand.")
    ] = None,
) -> None:
    """Download a dataset (resumed where it was cut) and prepare it for every later command."""
    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bars:
        task = bars.add_task(name, total=None)
        path = catalog.fetch(
            name,
            origin=origin,
            progress=lambda done, total: bars.update(task, completed=done, total=total),
        )
    _print_summary(prepared.open_prepared(path), path)


@app.command()
def describe(
    data: Annotated[str, typer.Argument(help="A name, a prepared file, a table, or a source.")],
    as_json: Json = False,
) -> None:
    """Print sizes, ratings, history lengths, repeats and popularity of a data set."""
    facts = description(catalog.open_data(data))
    if as_json:
        _print_json(facts)
        return
    table = Table(facts["name"], "", show_header=True)
    for label, value in _lines(facts):
        table.add_row(label, value)
    Console().print(table)


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(help="Anything 'describe' takes, or 'synthetic'.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    layout: Annotated[str | None, typer.Option(help=f"One of {_LAYOUTS}.")] = None,
    recipe: Annotated[str | None, typer.Option(help=_RECIPES)] = None,
    user_col: Annotated[str | None, typer.Option(help="Column of users.")] = None,
    item_col: Annotated[str | None, typer.Option(help="Column of items.")] = None,
    rating_col: Annotated[str | None, typer.Option(help="Column of ratings, or 'none'.")] = None,
    time_col: Annotated[str | None, typer.Option(help="Column of times, or 'none'.")] = None,
    side: Annotated[str, typer.Option(help="Further columns to keep, for example a,b.")] = "",
    min_rating: Annotated[float | None, typer.Option(help="Keep ratings above this.")] = None,
    core: Annotated[int | None, typer.Option(help="Keep the k-core of this k.")] = None,
    shuffle_ties: Annotated[
        int | None, typer.Option(help="Shuffle events of one timestamp with this seed.")
    ] = None,
    users: Annotated[int | None, typer.Option(help="synthetic: how many users.")] = None,
    items: Annotated[int | None, typer.Option(help="synthetic: how many items.")] = None,
    seed: Annotated[int | None, typer.Option(help="synthetic: the seed.")] = None,
    durability: Annotated[float | None, typer.Option(help="synthetic: lasting tastes.")] = None,
    drift: Annotated[float | None, typer.Option(help="synthetic: how fast moods change.")] = None,
    implicit: Annotated[bool, typer.Option("--implicit", help="synthetic: no ratings.")] = False,
    as_json: Json = False,
) -> None:
    """Read a source, filter it, and write one memory-mapped file."""
    if out.suffix != prepared.SUFFIX:
        raise ConfigError(f"--out {out}: a prepared dataset is called *{prepared.SUFFIX}")
    options = {
        "users": users,
        "items": items,
        "seed": seed,
        "durability": durability,
        "drift": drift,
        "implicit": implicit or None,
    }
    data = catalog.open_data(
        source,
        layout=layout,
        columns=ColumnNames(
            user=user_col, item=item_col, rating=rating_col, time=time_col, side=parse_names(side)
        ),
        options={name: value for name, value in options.items() if value is not None},
    )
    data = filtering.prepare(data, recipe=recipe, min_rating=min_rating, core=core)
    if shuffle_ties is not None:
        data = filtering.shuffle_ties(data, shuffle_ties)
    prepared.write(data, out)
    if as_json:
        _print_json({"out": str(out), **_sizes(data), "steps": data.about.get("steps", [])})
    else:
        _print_summary(data, out)


def _sizes(data: Interactions) -> dict[str, Any]:
    return {
        "users": data.users,
        "items": data.items,
        "interactions": len(data),
        "explicit": data.explicit,
    }


def _print_summary(data: Interactions, path: Path) -> None:
    kind = "ratings" if data.explicit else "interactions"
    typer.echo(f"{path}: {data.users:,} users, {data.items:,} items, {len(data):,} {kind}")


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value))


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the printed table."""
    lengths, popularity = facts["history_length"], facts["popularity"]
    quantiles = [f"{key[1:]}%: {value:g}" for key, value in lengths.items() if key != "mean"]
    ties = facts["tied_neighbours"]
    lines = [(name, f"{facts[name]:,}") for name in ("users", "items", "interactions")]
    if facts["ratings"]:
        total = facts["interactions"]
        lines += [
            (f"rating {value}", f"{count:,} ({count / total:.1%})")
            for value, count in facts["ratings"].items()
        ]
    return [
        *lines,
        ("history length, mean", f"{lengths['mean']:.1f}"),
        ("history length, quantiles", "  ".join(quantiles)),
        ("repeats", f"{facts['repeats']:.1%}"),
        ("neighbours with the same time", "no times" if ties is None else f"{ties:.1%}"),
        ("events on the top 1% of items", f"{popularity['top_1_percent']:.1%}"),
        ("events on the top 10% of items", f"{popularity['top_10_percent']:.1%}"),
        ("Gini of popularity", f"{popularity['gini']:.2f}"),
        *((name, "yes" if facts[name] else "no") for name in ("titles", "categories", "times")),
    ]
