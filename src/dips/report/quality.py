"""Quality by sketch size: tables beside the paper's, charts, differences, sizes at equal quality.

Reads rows of means (policy, size, every, metric, mean, std, spread, n) and of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dips.evaluation.equivalence import EqualSize, equal_size
from dips.evaluation.metrics import LOWER_IS_BETTER
from dips.evaluation.verdict import beyond_chance
from dips.report.charts import Point, Series, interval_chart, legend, line_chart
from dips.report.markup import Cell, Markup, difference, figure, shown, table
from dips.report.paper import paper_figure

Row = Mapping[str, Any]
NO_SKETCH = "no sketch"
LEVEL = ("all", NO_SKETCH)
"""What has no size: it is drawn as a line across."""
KNOWN = ("learned", "last", "reservoir", "dips", "dips@1", "hardest", "influence", "all")
"""These have the same colour on every page; others take what is left, in order."""


def policies(rows: Sequence[Row]) -> list[str]:
    """The policies in the order in which they first come."""
    return list(dict.fromkeys(row["policy"] for row in rows))


def colours(names: Sequence[str]) -> dict[str, int]:
    """A colour for each name, the same wherever it is shown."""
    taken = {name: KNOWN.index(name) for name in names if name in KNOWN}
    free = [place for place in range(64) if place not in taken.values()]
    others = [name for name in names if name not in taken]
    return {**taken, **dict(zip(others, free, strict=False))}


def periods(rows: Sequence[Row]) -> list[int]:
    """The refresh periods, shortest first."""
    return sorted({row["every"] for row in rows})


def refreshed(every: int) -> str:
    """A period in words."""
    return "refreshed at every interaction" if every == 1 else f"refreshed every {every}"


def chosen(rows: Sequence[Row], metric: str, every: int) -> list[Row]:
    """The means of one metric at one period."""
    return [row for row in rows if row["metric"] == metric and row["every"] == every]


def best_of(values: Sequence[float], metric: str) -> float:
    """The best of some values of a metric."""
    return min(values) if metric in LOWER_IS_BETTER else max(values)


def _best(values: Sequence[float], metric: str) -> float | None:
    return best_of(values, metric) if values else None


def means_table(rows: Sequence[Row], metric: str, every: int, data: str) -> str:
    """Policies by size, the best of each size in bold, and below the paper's where it has one."""
    mine = chosen(rows, metric, every)
    sizes = sorted({row["size"] for row in mine})
    place = {(row["policy"], row["size"]): row for row in mine}
    baselines = [row for row in mine if row["policy"] not in LEVEL]  # what keeps everything wins
    best = {s: _best([row["mean"] for row in baselines if row["size"] == s], metric) for s in sizes}
    lines: list[list[Cell]] = []
    for policy in policies(mine):
        cells = [
            _mean(place.get((policy, size)), best[size], data, metric, every) for size in sizes
        ]
        lines.append([policy, *cells])
    better = "lower" if metric in LOWER_IS_BETTER else "higher"
    splits = max(row["n"] for row in mine)
    over = f"mean and standard deviation over {splits} splits" if splits > 1 else "one split"
    caption = f"Test {metric} ({better} is better), {refreshed(every)}; {over}, best in bold"
    return table(["policy", *(f"K = {size}" for size in sizes)], lines, caption)


def _mean(row: Row | None, best: float | None, data: str, metric: str, every: int) -> Cell:
    if row is None:
        return ""
    value = f"{row['mean']:.4f}"
    if row["mean"] == best:
        value = f'<span class="best">{value}</span>'
    spread = f"<small>± {row['std']:.4f}</small>" if row["n"] > 1 else ""
    paper = paper_figure(data, metric, every, row["size"], row["policy"])
    if paper is None:
        return Markup(value + spread)
    ahead = row["mean"] - paper.mean
    good = ahead < 0 if metric in LOWER_IS_BETTER else ahead > 0
    baseline_config = f"<small>paper's {paper.method} {paper.mean:.4f}</small>"
    return Markup(f"{value}{spread}{baseline_config}<small>{difference(ahead, good=good)}</small>")


def size_chart(
    rows: Sequence[Row],
    metric: str,
    every: int,
    *,
    colour: Mapping[str, int],
    title: str,
    x_label: str = "sketch size K",
    cost: Callable[[int, int], float] = lambda size, every: size,
) -> str:
    """Quality over the size, or over what a size costs, with one line per policy."""
    mine = chosen(rows, metric, every)
    series = []
    for policy in policies(mine):
        own = sorted((row for row in mine if row["policy"] == policy), key=lambda r: r["size"])
        points = tuple(
            Point(
                cost(row["size"], every),
                row["mean"],
                row["mean"] - row["spread"] if row["n"] > 1 else None,
                row["mean"] + row["spread"] if row["n"] > 1 else None,
                f"{policy}, K = {row['size']}: {row['mean']:.4f}"
                + (f" ± {row['std']:.4f}" if row["n"] > 1 else ""),
            )
            for row in own
        )
        if points:
            series.append(Series(policy, colour[policy], points, level=policy in LEVEL))
    ticks = sorted({p.x for one in series if not one.level for p in one.points})
    chart = line_chart(
        series, title=title, x_label=x_label, y_label=f"test {metric}", log_x=True, x_ticks=ticks
    )
    numbers = table(
        ["policy", *(f"{tick:g}" for tick in ticks)],
        [[s.name, *_heights(s, ticks)] for s in series],
        f"{metric} by {x_label}",
    )
    better = "lower is better" if metric in LOWER_IS_BETTER else "higher is better"
    split = any(row["n"] > 1 for row in mine)
    whiskers = "; whiskers: deviation over splits, their common shifts removed" if split else ""
    key = legend(series)
    return figure(title, better + whiskers, chart, key=key, numbers=numbers)


def _heights(series: Series, ticks: Sequence[float]) -> list[str]:
    if series.level:
        return [f"{series.points[0].y:.4f}"] * len(ticks)
    found = {point.x: f"{point.y:.4f}" for point in series.points}
    return [found.get(tick, "") for tick in ticks]


def difference_chart(
    paired: Sequence[Row], metric: str, every: int, against: str, colour: Mapping[str, int]
) -> str:
    """Differences to one policy with their 95 % intervals, from the paired tests."""
    rows, lines = [], list[list[Cell]]()
    for row in sorted(paired, key=lambda row: (_other(row, against), row["size"])):
        if row["metric"] != metric or row["every"] != every or against not in (row["a"], row["b"]):
            continue
        sign = 1 if row["b"] == against else -1
        other = _other(row, against)
        low, high = sorted((sign * row["low"], sign * row["high"]))
        diff = sign * row["diff"]
        name = f"{other}, K = {row['size']}"
        note = f"{name}: {diff:+.4f}, {low:+.4f} to {high:+.4f}, p = {row['p']:.3g}"
        rows.append((name, colour.get(other, 7), Point(diff, 0.0, low, high, note)))
        good = diff < 0 if metric in LOWER_IS_BETTER else diff > 0
        tag = Markup(difference(diff, good=good))
        lines.append([name, tag, f"{low:+.4f} to {high:+.4f}", f"{row['p']:.3g}"])
    title = f"Difference to {against}, {refreshed(every)}"
    better = "left" if metric in LOWER_IS_BETTER else "right"
    note = f"paired bootstrap over users, 95 % intervals; {better} of zero is better"
    chart = interval_chart(rows, title=title, x_label=f"difference of {metric}")
    head = ["policy and size", "difference", "95 % interval", "p (Holm)"]
    return figure(title, note, chart, numbers=table(head, lines, title))


def may_be_chance(
    paired: Sequence[Row], metric: str, cell: tuple[int, int], pair: set[str]
) -> bool:
    """Whether two policies were tested at a size and a period, and the test cannot tell them."""
    return any(
        not beyond_chance(row)
        for row in paired
        if (row["metric"], row["size"], row["every"]) == (metric, *cell)
        and {row["a"], row["b"]} == pair
    )


def _other(row: Row, against: str) -> str:
    return str(row["a"] if row["b"] == against else row["b"])


def equal_sizes(
    rows: Sequence[Row], metric: str, every: int, of: str
) -> dict[str, dict[int, EqualSize]]:
    """By other policy and size of this one: how large the other must be for the same quality."""
    mine = [row for row in chosen(rows, metric, every) if row["size"] > 0]
    own = {row["size"]: row["mean"] for row in mine if row["policy"] == of}
    found: dict[str, dict[int, EqualSize]] = {}
    for other in policies(mine):
        points = {row["size"]: row["mean"] for row in mine if row["policy"] == other}
        if other in (of, *LEVEL) or len(points) < 2:
            continue
        found[other] = {
            size: equal_size(
                list(points), list(points.values()), mean,
                lower_is_better=metric in LOWER_IS_BETTER,
            )
            for size, mean in sorted(own.items())
        }  # fmt: skip
    return found


def equal_table(rows: Sequence[Row], metric: str, every: int, of: str) -> str:
    """Sizes at equal quality; what lies beyond the sizes that were tried is said to."""
    found = equal_sizes(rows, metric, every, of)
    sizes = sorted({size for by_size in found.values() for size in by_size})
    if not sizes:
        return ""
    lines: list[list[Cell]] = [
        [f"{other} needs", *(_ratio(by_size[size], size) for size in sizes)]
        for other, by_size in found.items()
    ]
    caption = (
        f"Size that other policies need for the {metric} of {of}, {refreshed(every)}; "
        "linear in log size between the sizes tried, never beyond them"
    )
    return table(["", *(f"{of} at {size}" for size in sizes)], lines, caption)


def _ratio(found: EqualSize, size: int) -> Cell:
    """Green where the other needs more; where it needs as many or nobody knows, no colour."""
    ratio = found.ratio(size)
    if found.bound == "above":
        tone = "better" if ratio >= 1 else "soft"
    elif found.bound == "below":
        tone = "worse" if ratio <= 1 else "soft"
    else:
        tone = {1: "better", 0: "soft", -1: "worse"}[_sign(round(ratio, 2) - 1)]
    times = f"<small class='{tone}'>{ratio:.2f} ×</small>" if found.exact else ""  # noqa: RUF001
    return Markup(f'<span class="{"" if found.exact else tone}">{shown(str(found))}</span>{times}')


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def middle_size(rows: Sequence[Row], metric: str, every: int, of: str) -> int:
    """The size of a policy that stands for all of them."""
    mine = chosen(rows, metric, every)
    sizes = sorted(row["size"] for row in mine if row["policy"] == of and row["size"] > 0)
    return int(sizes[len(sizes) // 2])


def sentence(rows: Sequence[Row], metric: str, every: int, of: str, to: str) -> str:
    """'learned at 4 equals last at 5.6', at the middle size; beyond the sizes, who is better."""
    by_size = equal_sizes(rows, metric, every, of).get(to)
    if not by_size:
        return ""
    size = middle_size(rows, metric, every, of)
    found = by_size[size]
    if found.bound == "above":
        return f"{of} at {size} is better than {to} at {found.size:g}"
    if found.bound == "below":
        return f"{to} at {found.size:g} is better than {of} at {size}"
    return f"{of} at {size} equals {to} at {found}"
