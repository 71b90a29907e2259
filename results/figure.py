"""README's tables and its figure, and the table of docs/ablations.md, from the csv files in here.

    python results/figure.py [--check]       (make results)

Means over different splits do not compare, so the table of all policies takes the splits that all
of them have; a policy that is in several folders is taken from the first. With --check nothing is
written, and the exit code is 1 where a page is not what the files say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ablation_table import ablation_table
from implicit_table import tables

from dips.evaluation.comparison import summarise
from dips.evaluation.equivalence import EqualSize
from dips.evaluation.split_deviation import within_splits
from dips.report.figures import quality_by_size
from dips.report.paper import TITLES, paper_figure
from dips.report.quality import equal_sizes
from dips.report.results import Comparison, read_results

HERE = Path(__file__).parent
FOLDERS = ("ml-1m-table",)
IMPLICIT = {
    "implicit-nyc": "foursquare-nyc",
    "implicit-ml-1m": "MovieLens 1M, ratings > 3.5, 20-core",
    "implicit-amazon-cds": "amazon-cds",
}
"""Folders of implicit data, and what they are called."""
ABLATIONS = {
    "ablations-world": "made world",
    "ablations-ml-100k": "MovieLens 100K",
    "ablations-ml-1m": "MovieLens 1M",
}
"""Folders of ablations, as far as they are there, and what they are called."""
DATA, METRIC = "ml-1m", "rmse"
FIGURE = HERE / "ml-1m.png"
ORDER = (
    "learned", "last", "mix:4", "mix:2", "mix:1", "hardest", "influence", "reservoir", "dips@1",
    "dips",
)  # fmt: skip
Row = dict[str, Any]
Place = tuple[int, int]


def merged(parts: Iterable[Comparison]) -> list[Row]:
    """Rows of all policies, each from the first folder that has it, of the splits all have."""
    found: dict[str, list[Row]] = {}
    for part in parts:
        own: dict[str, list[Row]] = {}
        for row in part.rows:
            own.setdefault(row["policy"], []).append(row)
        found = {**own, **found}
    seeds = set.intersection(*({row["seed"] for row in rows} for rows in found.values()))
    names = sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return [row for name in names for row in found[name] if row["seed"] in seeds]


def summary_of(rows: Sequence[Row]) -> list[Row]:
    """Means over splits, with the deviation that is left when splits' common shifts are gone."""
    values: dict[tuple[str, int, int], dict[int, float]] = {}
    for row in rows:
        cell = (row["policy"], row["size"], row["every"])
        values.setdefault(cell, {})[row["seed"]] = row[f"test_{METRIC}"]
    spread = within_splits(values)
    plain = [{**row, "test": {METRIC: row[f"test_{METRIC}"]}} for row in rows]
    return [
        {**row, "std": spread[row["policy"], row["size"], row["every"]]} for row in summarise(plain)
    ]


def places(rows: Iterable[Row]) -> list[Place]:
    """Columns: (every, size), online first."""
    return sorted({(row["every"], row["size"]) for row in rows})


def line(head: str, cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in (head, *cells)) + "|"


def header(first: str, columns: Sequence[Place]) -> list[str]:
    """The first two rows of a Markdown table."""
    names = [f"K={size}" + ("" if every == 1 else f", every {every}") for every, size in columns]
    return [line(first, names), "|" + "---|" * (len(names) + 1)]


def everyone(summary: Sequence[Row]) -> str:
    """All policies, the best of each column in bold, the paper's in brackets."""
    columns = places(summary)
    mean = {(row["policy"], row["every"], row["size"]): row["mean"] for row in summary}
    best = {
        place: min(value for key, value in mean.items() if key[1:] == place) for place in columns
    }

    def cell(policy: str, place: Place) -> str:
        value = mean.get((policy, *place))
        if value is None:
            return ""
        paper = published(policy, place)
        text = f"**{value:.4f}**" if value == best[place] else f"{value:.4f}"
        return text + ("" if paper is None else f" ({paper:.4f})")

    policies = dict.fromkeys(row["policy"] for row in summary)
    lines = [line(f"`{p}`", (cell(p, place) for place in columns)) for p in policies]
    return "\n".join([*header("policy", columns), *lines])


def published(policy: str, place: Place) -> float | None:
    """What the paper has for one of its own policies."""
    found = paper_figure(DATA, METRIC, *place, policy) if policy in TITLES else None
    return None if found is None else found.mean


def versus(part: Comparison) -> str:
    """`learned` against `last`: means, paired difference and its interval, sizes that are equal."""
    mean = {(row["policy"], row["every"], row["size"]): row["mean"] for row in part.summary}
    both = [row for row in part.paired if {row["a"], row["b"]} == {"last", "learned"}]
    pairs = {(row["every"], row["size"]): row for row in both}
    columns = sorted(pairs)

    def difference(place: Place) -> str:
        row = pairs[place]
        sign = 1 if row["a"] == "last" else -1
        return f"{sign * row['diff']:.4f} ± {(row['high'] - row['low']) / 2:.4f}"

    def means(policy: str) -> list[str]:
        other = {"last": "learned", "learned": "last"}[policy]
        values = [(mean[policy, *place], mean[other, *place]) for place in columns]
        return [f"**{own:.4f}**" if own < baseline else f"{own:.4f}" for own, baseline in values]

    paper = [[v for p in TITLES if (v := published(p, place))] for place in columns]
    lines = [
        *header("", columns),
        line("`last`", means("last")),
        line("`learned`", means("learned")),
        line("difference", map(difference, columns)),
        line("the paper's best", (f"{min(found):.4f}" if found else "" for found in paper)),
        "",
        *(equal(part, every) for every in sorted({every for every, _ in columns})),
    ]
    return "\n".join(lines)


def equal(part: Comparison, every: int) -> str:
    """A sentence: which sizes of `last` are as good."""
    found = equal_sizes(part.summary, METRIC, every, "learned")["last"]
    when = "Online" if every == 1 else f"Every {every}"
    said = [f"`learned` at {size} {_equals(one)}" for size, one in found.items()]
    return f"{when}: {', '.join(said)}."


def _equals(found: EqualSize) -> str:
    if found.bound == "above":
        return f"is better than `last` at {found.size:g}, the largest tried"
    if found.bound == "below":
        return f"is worse than `last` at {found.size:g}, the smallest tried"
    return f"equals `last` at {found.size:.1f}"


def put(page: str, blocks: dict[str, str]) -> str:
    """The page with what stands between each pair of marks replaced."""
    for name, text in blocks.items():
        begin, end = f"<!-- results/figure.py: {name} -->", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
        if not pattern.search(page):
            raise SystemExit(f"the page has no place marked {begin}")
        whole = f"{begin}\n{text}\n{end}"
        page = pattern.sub(lambda _, whole=whole: whole, page, count=1)
    return page


def main(arguments: Sequence[str], readme: Path, ablations: Path) -> int:
    """Write the pages' tables and the figure, or check them."""
    parts = read_results([HERE / name for name in FOLDERS]).comparisons
    by_name = {part.name: part for part in parts}
    summary = summary_of(merged(parts))
    others = read_results([HERE / name for name in IMPLICIT]).comparisons
    titled = [(IMPLICIT[part.name], part) for part in others]
    blocks = {
        "versus": versus(by_name["ml-1m-table"]),
        "all": everyone(summary),
        "implicit": tables(titled, header),
    }
    tried = {title: HERE / name / "ablations.csv" for name, title in ABLATIONS.items()}
    old = {page: page.read_text() for page in (readme, ablations)}
    new = {
        readme: put(old[readme], blocks),
        ablations: put(old[ablations], {"ablations": ablation_table(tried)}),
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
    sys.exit(main(sys.argv[1:], root / "README.md", root / "docs" / "ablations.md"))
