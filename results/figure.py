"""Write the tables of docs/results.md and docs/ablations.md, and the figure, from the csv files.

    python results/figure.py [--check]       (make results)

Means over different splits are not comparable. So the table of all policies uses the splits that
all of them have. A policy that is in several folders is taken from the first. With --check nothing
is written, and the exit code is 1 where a page differs from the files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ablation_table import ablation_table
from fold_table import fold_table
from implicit_table import tables
from inner_loss_table import inner_loss_table
from split_interval import Cell, over_splits

from dips.evaluation.comparison import fold_of, summarise
from dips.evaluation.split_deviation import within_splits
from dips.report.figures import quality_by_size
from dips.report.paper_tables import METHOD_NAMES, published_result
from dips.report.quality import equal_quality_sizes
from dips.report.results import Comparison, read_results

HERE = Path(__file__).parent
FOLDERS = ("ml-1m-table",)
IMPLICIT = {
    "implicit-nyc": "foursquare-nyc",
    "implicit-ml-1m": "MovieLens 1M, ratings > 3.5, 20-core",
    "implicit-amazon-cds": "amazon-cds",
}
"""Folders of implicit data, and the titles of their tables."""
INNER_LOSSES = {
    "ml-1m-implicit": "MovieLens 1M",
    "ml-100k-implicit": "MovieLens 100K",
    "amazon-cds": "amazon-cds",
    "foursquare-nyc": "foursquare-nyc",
    "foursquare-nyc-more-splits": "foursquare-nyc, seven further splits",
}
"""Folders of the comparison of inner losses, and the names of their data."""
ABLATIONS = {
    "ablations-world": "synthetic",
    "ablations-ml-100k": "MovieLens 100K",
    "ablations-ml-1m": "MovieLens 1M",
}
"""Folders of ablations, and the titles of their columns."""
FOLD_TABLES = {
    "ml-1m-folds": ("ml-1m-folds", "rmse", ("learned",)),
    "ml-1m-folds-k4": ("ml-1m-folds-k4", "rmse", ("learned",)),
    "starts-ml-100k": (
        "starts-ml-100k",
        "rmse",
        ("pretrained", "learned-pretrained", "learned-rule"),
    ),
    "starts-ml-100k-300": (
        "starts-ml-100k-300",
        "rmse",
        ("pretrained", "learned-pretrained", "learned-rule", "learned-last"),
    ),
}
"""Tables over folds: folder, metric, and the policies that are held against the best rule."""
DATA, METRIC = "ml-1m", "rmse"
FIGURE = HERE / "ml-1m.png"
ORDER = (
    "learned", "last", "mix:4", "mix:2", "mix:1", "hardest", "influence", "reservoir", "dips@1",
    "dips",
)  # fmt: skip
Row = dict[str, Any]


def merged(parts: Iterable[Comparison]) -> list[Row]:
    """Return rows of all policies, each from the first folder with it, for their common splits."""
    found: dict[str, list[Row]] = {}
    for part in parts:
        own: dict[str, list[Row]] = {}
        for row in part.rows:
            own.setdefault(row["policy"], []).append(row)
        found = {**own, **found}
    folds = set.intersection(*({fold_of(row) for row in rows} for rows in found.values()))
    names = sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return [row for name in names for row in found[name] if fold_of(row) in folds]


def summary_of(rows: Sequence[Row]) -> list[Row]:
    """Return means over folds, and deviations after the folds' common shifts are removed."""
    values: dict[tuple[str, int, int], dict[int, list[float]]] = {}
    for row in rows:
        cell = (row["policy"], row["size"], row["every"])
        values.setdefault(cell, {}).setdefault(fold_of(row), []).append(row[f"test_{METRIC}"])
    spread = within_splits(
        {cell: {f: mean(own) for f, own in folds.items()} for cell, folds in values.items()}
    )
    plain = [{**row, "test": {METRIC: row[f"test_{METRIC}"]}} for row in rows]
    return [
        {**row, "std": spread[row["policy"], row["size"], row["every"]]} for row in summarise(plain)
    ]


def cells_of(rows: Iterable[Row]) -> list[Cell]:
    """Return the columns of a table: (every, size), online first."""
    return sorted({(row["every"], row["size"]) for row in rows})


def line(head: str, cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in (head, *cells)) + "|"


def header(first: str, columns: Sequence[Cell]) -> list[str]:
    """Return the first two rows of a Markdown table."""
    names = [f"K={size}" + ("" if every == 1 else f", every {every}") for every, size in columns]
    return [line(first, names), "|" + "---|" * (len(names) + 1)]


def policy_table(summary: Sequence[Row]) -> str:
    """Return the table of all policies: best of a column bold, the paper's values in brackets."""
    columns = cells_of(summary)
    mean = {(row["policy"], row["every"], row["size"]): row["mean"] for row in summary}
    best = {cell: min(value for key, value in mean.items() if key[1:] == cell) for cell in columns}

    def entry(policy: str, cell: Cell) -> str:
        value = mean.get((policy, *cell))
        if value is None:
            return ""
        paper = published(policy, cell)
        text = f"**{value:.4f}**" if value == best[cell] else f"{value:.4f}"
        return text + ("" if paper is None else f" ({paper:.4f})")

    policies = dict.fromkeys(row["policy"] for row in summary)
    lines = [line(f"`{p}`", (entry(p, cell) for cell in columns)) for p in policies]
    return "\n".join([*header("policy", columns), *lines])


def published(policy: str, cell: Cell) -> float | None:
    """Return the paper's value of a policy in a cell, or None."""
    found = published_result(DATA, METRIC, *cell, policy) if policy in METHOD_NAMES else None
    return None if found is None else found.mean


def versus(part: Comparison) -> str:
    """Return `learned` against `last`: means, differences with both intervals, equal sizes."""
    mean = {(row["policy"], row["every"], row["size"]): row["mean"] for row in part.summary}
    both = [row for row in part.paired if {row["a"], row["b"]} == {"last", "learned"}]
    pairs = {(row["every"], row["size"]): row for row in both}
    columns = sorted(pairs)

    def over_users(cell: Cell) -> str:
        row = pairs[cell]
        sign = 1 if row["a"] == "last" else -1
        return f"{sign * row['diff']:.4f} ± {(row['high'] - row['low']) / 2:.4f}"

    def by_split(cell: Cell) -> str:
        found = over_splits(part.rows, "last", "learned", cell, METRIC)
        return f"{found.mean:.4f} ± {found.half_width:.4f}"

    def means(policy: str) -> list[str]:
        other = {"last": "learned", "learned": "last"}[policy]
        values = [(mean[policy, *cell], mean[other, *cell]) for cell in columns]
        return [f"**{own:.4f}**" if own < baseline else f"{own:.4f}" for own, baseline in values]

    paper = [[v for p in METHOD_NAMES if (v := published(p, cell))] for cell in columns]
    lines = [
        *header("", columns),
        line("`last`", means("last")),
        line("`learned`", means("learned")),
        line("difference, interval over splits", map(by_split, columns)),
        line("difference, interval over users (models fixed)", map(over_users, columns)),
        line("the paper's best", (f"{min(found):.4f}" if found else "" for found in paper)),
        line("size of `last` with equal RMSE", (equal_size(part, cell) for cell in columns)),
    ]
    return "\n".join(lines)


def equal_size(part: Comparison, cell: Cell) -> str:
    """Return the sketch size at which `last` has the quality of `learned` in a cell."""
    every, size = cell
    found = equal_quality_sizes(part.summary, METRIC, every, "learned")["last"][size]
    sign = {"above": "> ", "below": "< "}.get(found.bound, "")
    return f"{sign}{found.size:g}" if sign else f"{found.size:.1f}"


def replace_blocks(page: str, blocks: dict[str, str]) -> str:
    """Return the page with the text between each pair of markers replaced."""
    for name, text in blocks.items():
        begin, end = f"<!-- results/figure.py: {name} -->", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
        if not pattern.search(page):
            raise SystemExit(f"the page has no marker {begin}")
        whole = f"{begin}\n{text}\n{end}"
        page = pattern.sub(lambda _, whole=whole: whole, page, count=1)
    return page


def main(arguments: Sequence[str], results: Path, ablations: Path) -> int:
    """Write the tables of both pages and the figure, or check the tables."""
    parts = read_results([HERE / name for name in FOLDERS]).comparisons
    by_name = {part.name: part for part in parts}
    summary = summary_of(merged(parts))
    others = read_results([HERE / name for name in IMPLICIT]).comparisons
    titled = [(IMPLICIT[part.name], part) for part in others]
    folders = [HERE / folder for folder, _, _ in FOLD_TABLES.values()]
    by_fold = {part.name: part for part in read_results(folders).comparisons}
    blocks = {
        **{
            name: fold_table(by_fold[folder], metric, focus)
            for name, (folder, metric, focus) in FOLD_TABLES.items()
        },
        "versus": versus(by_name["ml-1m-table"]),
        "all": policy_table(summary),
        "implicit": tables(titled, header),
        "inner-losses": inner_loss_table(
            {title: HERE / "inner-losses" / name for name, title in INNER_LOSSES.items()}
        ),
    }
    tried = {title: HERE / name / "ablations.csv" for name, title in ABLATIONS.items()}
    old = {page: page.read_text() for page in (results, ablations)}
    new = {
        results: replace_blocks(old[results], blocks),
        ablations: replace_blocks(old[ablations], {"ablations": ablation_table(tried)}),
    }
    if "--check" in arguments:
        return int(new != old)
    for page, text in new.items():
        page.write_text(text)
    marks = [
        {**row, "mean": paper}
        for row in summary
        if (paper := published(row["policy"], (row["every"], row["size"]))) is not None
    ]
    quality_by_size(
        summary, METRIC, FIGURE, marks=marks,
        note="mean; whiskers: std over splits,\ntheir common shifts removed;\ncrosses: the paper's",
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    root = HERE.parent
    sys.exit(main(sys.argv[1:], root / "docs" / "results.md", root / "docs" / "ablations.md"))
