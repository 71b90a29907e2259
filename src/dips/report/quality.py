"""Tables and charts of quality by sketch size, paired differences and sizes at equal quality.

Input are rows of means (policy, size, every, metric, mean, std, spread, n) and of paired tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dips.evaluation.equal_quality_size import EqualQualitySize, equal_quality_size
from dips.evaluation.metrics import LOWER_IS_BETTER
from dips.evaluation.significance import best_policies, folds_in_words, is_significant
from dips.report.charts import Point, Series, interval_chart, legend, line_chart
from dips.report.markup import NOTHING, Cell, Markup, difference_tag, figure, table, to_html
from dips.report.paper_tables import published_result

Row = Mapping[str, Any]
NO_SKETCH = "no sketch"
WITHOUT_SIZE = ("all", NO_SKETCH)
"""Policies without a sketch size, drawn as horizontal lines."""
FIXED_COLOURS = ("learned", "last", "reservoir", "dips", "dips@1", "hardest", "influence", "all")
"""Policies with the same colour on every page; others take the remaining colours in order."""


def policy_names(rows: Sequence[Row]) -> list[str]:
    """Return the distinct policies, in order of first occurrence."""
    return list(dict.fromkeys(row["policy"] for row in rows))


def policy_colours(names: Sequence[str]) -> dict[str, int]:
    """Return a colour index for each policy."""
    taken = {name: FIXED_COLOURS.index(name) for name in names if name in FIXED_COLOURS}
    free = [place for place in range(64) if place not in taken.values()]
    others = [name for name in names if name not in taken]
    return {**taken, **dict(zip(others, free, strict=False))}


def periods(rows: Sequence[Row]) -> list[int]:
    """Return the refresh periods, shortest first."""
    return sorted({row["every"] for row in rows})


def refresh_text(every: int) -> str:
    """Return a refresh period in words."""
    return "refreshed at every interaction" if every == 1 else f"refreshed every {every}"


def select_rows(rows: Sequence[Row], metric: str, every: int) -> list[Row]:
    """Return the rows of one metric and one refresh period."""
    return [row for row in rows if row["metric"] == metric and row["every"] == every]


def best_value(values: Sequence[float], metric: str) -> float:
    """Return the smallest or largest value, depending on the metric."""
    return min(values) if metric in LOWER_IS_BETTER else max(values)


def means_table(
    rows: Sequence[Row], metric: str, every: int, data: str, paired: Sequence[Row] = ()
) -> Markup:
    """Return a table of policies by size, the best in bold, with the paper's values if any."""
    mine = select_rows(rows, metric, every)
    sizes = sorted({row["size"] for row in mine})
    place = {(row["policy"], row["size"]): row for row in mine}
    best = {size: best_policies(mine, paired, metric, size, every) for size in sizes}
    lines: list[list[Cell]] = []
    for policy in policy_names(mine):
        cells = [
            _mean(place.get((policy, size)), policy in best[size], data, metric, every)
            for size in sizes
        ]
        lines.append([policy, *cells])
    better = "lower" if metric in LOWER_IS_BETTER else "higher"
    folds = max(row["n"] for row in mine)
    over = f"mean and standard deviation over {folds} folds" if folds > 1 else "one fold"
    bold = "bold: the best, and all that do not differ from it significantly"
    caption = f"Test {metric} ({better} is better), {refresh_text(every)}; {over}; {bold}"
    return table(["policy", *(f"K = {size}" for size in sizes)], lines, caption)


def _mean(row: Row | None, is_best: bool, data: str, metric: str, every: int) -> Cell:
    if row is None:
        return ""
    value = f"{row['mean']:.4f}"
    if is_best:
        value = f'<span class="best">{value}</span>'
    spread = f"<small>± {row['std']:.4f}</small>" if row["n"] > 1 else ""
    paper = published_result(data, metric, every, row["size"], row["policy"])
    if paper is None:
        return Markup(value + spread)
    ahead = row["mean"] - paper.mean
    good = ahead < 0 if metric in LOWER_IS_BETTER else ahead > 0
    published = f"<small>paper's {paper.method} {paper.mean:.4f}</small>"
    return Markup(f"{value}{spread}{published}<small>{difference_tag(ahead, good=good)}</small>")


def size_chart(
    rows: Sequence[Row],
    metric: str,
    every: int,
    *,
    colour: Mapping[str, int],
    title: str,
    x_label: str = "sketch size K",
    cost: Callable[[int, int], float] = lambda size, every: size,
) -> Markup:
    """Return a chart of quality by sketch size or its cost, one line per policy.

    Args:
        rows: Rows of means.
        metric: The metric to draw.
        every: The refresh period to draw.
        colour: Colour index by policy.
        title: Title of the figure.
        x_label: Label of the x axis.
        cost: Maps a size and a refresh period to the x axis.
    """
    mine = select_rows(rows, metric, every)
    series = []
    for policy in policy_names(mine):
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
            series.append(Series(policy, colour[policy], points, horizontal=policy in WITHOUT_SIZE))
    ticks = sorted({p.x for one in series if not one.horizontal for p in one.points})
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
    whiskers = "; whiskers: deviation over folds, their common shifts removed" if split else ""
    return figure(title, better + whiskers, chart, legend=legend(series), numbers=numbers)


def _heights(series: Series, ticks: Sequence[float]) -> list[str]:
    if series.horizontal:
        return [f"{series.points[0].y:.4f}"] * len(ticks)
    found = {point.x: f"{point.y:.4f}" for point in series.points}
    return [found.get(tick, "") for tick in ticks]


def difference_chart(
    paired: Sequence[Row], metric: str, every: int, against: str, colour: Mapping[str, int]
) -> Markup:
    """Return a chart of differences to one policy, with 95 % intervals of the paired tests.

    The table below it has the difference in each fold. A significant difference is bold.
    """
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
        tag = difference_tag(diff, good=good)
        if is_significant(row):
            tag = Markup(f'<span class="best">{tag}</span>')
        folds = row.get("folds") or []
        each = ", ".join(f"{sign * one:+.4f}" for one in folds)
        agreeing = folds_in_words(row) if folds else ""
        lines.append([name, tag, f"{low:+.4f} to {high:+.4f}", f"{row['p']:.3g}", agreeing, each])
    title = f"Difference to {against}, {refresh_text(every)}"
    better = "left" if metric in LOWER_IS_BETTER else "right"
    note = (
        f"paired bootstrap over users, 95 % intervals; {better} of zero is better; in the table, "
        "bold is significant and folds agree if they have the sign of the difference"
    )
    chart = interval_chart(rows, title=title, x_label=f"difference of {metric}")
    head = ["policy and size", "difference", "95 % interval", "p (Holm)"]
    head += ["folds that agree", "difference in each fold"]
    return figure(title, note, chart, numbers=table(head, lines, title))


def best_rules_table(best_rules: Sequence[Row]) -> Markup:
    """Return a table of the rules that are best on validation, by size, period and fold."""
    if not best_rules:
        return NOTHING
    folds = sorted({row["fold"] for row in best_rules})
    chosen = {(row["size"], row["every"], row["fold"]): row["policy"] for row in best_rules}
    lines: list[list[Cell]] = [
        [f"K = {size}, {refresh_text(every)}", *(chosen.get((size, every, f), "") for f in folds)]
        for size, every in dict.fromkeys((row["size"], row["every"]) for row in best_rules)
    ]
    caption = "best-rule: the static policy that is best on validation in each fold"
    return table(["", *(f"fold {fold}" for fold in folds)], lines, caption)


def is_not_significant(
    paired: Sequence[Row], metric: str, cell: tuple[int, int], pair: set[str]
) -> bool:
    """Return whether a paired test of two policies was made and is not significant."""
    return any(
        not is_significant(row)
        for row in paired
        if (row["metric"], row["size"], row["every"]) == (metric, *cell)
        and {row["a"], row["b"]} == pair
    )


def _other(row: Row, against: str) -> str:
    return str(row["a"] if row["b"] == against else row["b"])


def equal_quality_sizes(
    rows: Sequence[Row], metric: str, every: int, of: str
) -> dict[str, dict[int, EqualQualitySize]]:
    """Return, by other policy and by size of `of`, the size at which the other is equally good."""
    mine = [row for row in select_rows(rows, metric, every) if row["size"] > 0]
    own = {row["size"]: row["mean"] for row in mine if row["policy"] == of}
    found: dict[str, dict[int, EqualQualitySize]] = {}
    for other in policy_names(mine):
        points = {row["size"]: row["mean"] for row in mine if row["policy"] == other}
        if other in (of, *WITHOUT_SIZE) or len(points) < 2:
            continue
        found[other] = {
            size: equal_quality_size(
                list(points), list(points.values()), mean,
                lower_is_better=metric in LOWER_IS_BETTER,
            )
            for size, mean in sorted(own.items())
        }  # fmt: skip
    return found


def equal_quality_table(rows: Sequence[Row], metric: str, every: int, of: str) -> Markup:
    """Return a table of sizes at equal quality; sizes outside the tested range are bounds."""
    found = equal_quality_sizes(rows, metric, every, of)
    sizes = sorted({size for by_size in found.values() for size in by_size})
    if not sizes:
        return NOTHING
    lines: list[list[Cell]] = [
        [f"{other} needs", *(_ratio(by_size[size], size) for size in sizes)]
        for other, by_size in found.items()
    ]
    caption = (
        f"Size that other policies need for the {metric} of {of}, {refresh_text(every)}; "
        "linear in log size between the sizes tried, never beyond them"
    )
    return table(["", *(f"{of} at {size}" for size in sizes)], lines, caption)


def _ratio(found: EqualQualitySize, size: int) -> Cell:
    """Return a cell, marked better if the other needs a larger size, worse if a smaller one."""
    ratio = found.ratio(size)
    if found.bound == "above":
        tone = "better" if ratio >= 1 else "soft"
    elif found.bound == "below":
        tone = "worse" if ratio <= 1 else "soft"
    else:
        tone = {1: "better", 0: "soft", -1: "worse"}[_sign(round(ratio, 2) - 1)]
    times = f"<small class='{tone}'>{ratio:.2f} ×</small>" if found.exact else ""  # noqa: RUF001
    size_tone = "" if found.exact else tone
    return Markup(f'<span class="{size_tone}">{to_html(str(found))}</span>{times}')


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def equal_quality_sentence(
    rows: Sequence[Row], metric: str, every: int, cell: tuple[str, int], to: str
) -> str:
    """Return a sentence such as 'learned at 4 equals last at 5.6'.

    Outside the tested sizes it says which one is better. It is empty if only one size of `to` was
    tried, and if it contradicts the comparison at equal size: quality need not grow with the size.

    Args:
        rows: Rows of means.
        metric: The metric.
        every: The refresh period.
        cell: Policy and sketch size whose quality is reached.
        to: The other policy.
    """
    of, size = cell
    found = equal_quality_sizes(rows, metric, every, of).get(to, {}).get(size)
    if found is None:
        return ""
    mean = {row["policy"]: row["mean"] for row in select_rows(rows, metric, every)
            if row["size"] == size}  # fmt: skip
    needs_more = found.bound == "above" or found.size > size
    better = of if needs_more else to
    if to in mean and mean[better] != best_value([mean[of], mean[to]], metric):
        return ""
    if found.bound == "above":
        return f"{of} at {size} is better than {to} at {found.size:g}"
    if found.bound == "below":
        return f"{to} at {found.size:g} is better than {of} at {size}"
    return f"{of} at {size} equals {to} at {found}"
