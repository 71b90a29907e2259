"""The report: everything that was found, on one self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dips.evaluation.metrics import headline
from dips.evaluation.verdict import choosers
from dips.report.markup import Cell, charts, paragraph, section, table
from dips.report.page import page
from dips.report.paper import CLAIMS, TABLES, paper_figure
from dips.report.quality import (
    LEVEL,
    NO_SKETCH,
    best_of,
    chosen,
    colours,
    difference_chart,
    equal_table,
    may_be_chance,
    means_table,
    middle_size,
    periods,
    policies,
    sentence,
    size_chart,
)
from dips.report.results import Comparison, Experiment, Results, Row
from dips.report.runs import (
    compared_curves,
    gradient_figures,
    origins,
    run_curves,
    run_scores,
    settings_tables,
    timings,
)
from dips.report.stages import stages_table

Bytes = Callable[[int, int, bool], float]
"""From size, period and whether there are ratings to the bytes that a user's record takes."""
ABOUT = ("kind", "data", "sizes", "seeds", "every")
"""What an experiment tells of itself beside its reader's settings."""
TITLES = {"transfer": "Policy transfer", "session": "Sessions with a sketch"}


def report_page(results: Results, *, bytes_of: Bytes, version: str) -> str:
    """The whole page."""
    names = [p for c in results.comparisons for p in policies(c.summary)]
    names += [p for e in results.experiments for p in policies(e.summary)]
    colour = colours(list(dict.fromkeys([*names, NO_SKETCH])))
    runs = [*results.runs, *(run for c in results.comparisons for run in c.runs)]
    told = "".join(stages_table(paper) for paper in results.papers)
    parts: list[tuple[str, str, str]] = [("stages", "What was run", told)]
    for place, comparison in enumerate(results.comparisons):
        body = _comparison(comparison, colour, bytes_of)
        parts.append((f"compare-{place}", _title(comparison, results.comparisons), body))
    for place, experiment in enumerate(results.experiments):
        data = Path(experiment.about.get("data", experiment.name)).stem
        title = f"{TITLES[experiment.kind]}: {data}"
        parts.append((f"{experiment.kind}-{place}", title, _experiment(experiment, colour)))
    parts.append(("gradients", "Policy gradients", gradient_figures(runs)))
    parts.append(("curves", "Training", _curves(results, colour)))
    parts.append(("timings", "Timings", _timings(results)))
    parts.append(("settings", "Settings", _settings(results)))
    parts.append(("origins", "Commands and environment", origins(_origins(results))))
    there = [(name, title, body) for name, title, body in parts if body]
    links = "".join(f'<li><a href="#{n}">{escape(title)}</a></li>' for n, title, _ in there)
    body = f"""<header>
<h1>Which interactions to keep</h1>
<p class="lede">{escape(_lede(results))}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main id="main">{_cards(results)}{"".join(section(*part) for part in there)}</main>
<footer>Made by dips {escape(version)}. Nothing on this page is loaded from anywhere.</footer>"""
    return page("dips: which interactions to keep", body)


def _title(found: Comparison, others: Sequence[Comparison]) -> str:
    """What a comparison is of; by its directory, too, where there are several of the same data."""
    twins = [other for other in others if other.data == found.data]
    return f"Policies on {found.data}" + (f" ({found.name})" if len(twins) > 1 else "")


def metrics_of(summary: Sequence[Row]) -> list[str]:
    """The metrics that are shown, the deciding one first, and at most one more."""
    names = list(dict.fromkeys(row["metric"] for row in summary))
    first = headline(dict.fromkeys(names, 0.0))
    return [first, *(name for name in names if name != first)][:2]


def best_at_the_middle(summary: Sequence[Row], metric: str) -> Mapping[str, Any]:
    """The best policy at the middle size and the shortest period: one number for a whole table."""
    rows = chosen(summary, metric, periods(summary)[0])
    rows = [row for row in rows if row["policy"] not in LEVEL] or rows
    sizes = sorted({row["size"] for row in rows})
    middle = [row for row in rows if row["size"] == sizes[len(sizes) // 2]]
    best = best_of([row["mean"] for row in middle], metric)
    return next(row for row in middle if row["mean"] == best)


def leading(summary: Sequence[Row], metric: str) -> str:
    """The policy that others are held against: ours, or else the best."""
    if "learned" in policies(summary):
        return "learned"
    return str(best_at_the_middle(summary, metric)["policy"])


def _lede(results: Results) -> str:
    counted = {
        "comparison": len(results.comparisons),
        "experiment": len(results.experiments),
        "single run": len(results.runs),
    }
    told = [f"{n} {name}{'s' if n > 1 else ''}" for name, n in counted.items() if n]
    said = ", ".join(told[:-1]) + (" and " if told[1:] else "") + told[-1]
    return (
        f"Sketching policies keep K of each user's interactions; a recommender reads them and "
        f"predicts the next one. Results of {said}."
    )


def _cards(results: Results) -> str:
    """The first things to know: who is best, and sizes at equal quality."""
    cards: list[tuple[str, str]] = []
    for found in results.comparisons:
        cards += [_best(found), *_equal(found, f"on {found.data}")]
    for experiment in results.experiments:
        cards += _equal(experiment, f"in {TITLES[experiment.kind].lower()}")
    shown = "".join(f"<li><b>{escape(a)}</b><span>{escape(b)}</span></li>" for a, b in cards)
    return f'<ul class="cards">{shown}</ul>' if shown else ""


def _best(found: Comparison) -> tuple[str, str]:
    """Who is best at the middle size, and before whom that may be chance."""
    metric, every = metrics_of(found.summary)[0], periods(found.summary)[0]
    best = best_at_the_middle(found.summary, metric)
    who, size = str(best["policy"]), best["size"]
    said = f"best {metric} on {found.data} at K = {size}: {best['mean']:.4f}"
    alike = [
        other
        for other in policies(found.summary)
        if other not in LEVEL and may_be_chance(found.paired, metric, (size, every), {who, other})
    ]
    doubt = f"; ahead of {', '.join(alike)} it may be chance" if alike else ""
    return who + _credit(found.rows, who, size, every), said + doubt


def _equal(found: Comparison | Experiment, where: str) -> list[tuple[str, str]]:
    """Sizes at equal quality against what people use today."""
    summary = found.summary
    metric, every = metrics_of(summary)[0], periods(summary)[0]
    of = leading(summary, metric)
    size = middle_size(summary, metric, every, of)
    cards = []
    for to in ("last", "reservoir"):
        said = sentence(summary, metric, every, of, to) if to != of else ""
        chance = may_be_chance(found.paired, metric, (size, every), {of, to})
        if said:
            credit = _credit(found.rows, of, size, every)
            doubt = "; the difference may be chance" if chance else ""
            cards.append((said + credit, f"by {metric} {where}{doubt}"))
    return cards


def _credit(rows: Sequence[Row], policy: str, size: int, every: int) -> str:
    """Who chose in the runs of a cell, where it was not the policy itself."""
    cell = [row for row in rows if (row["size"], row.get("every", every)) == (size, every)]
    names = sorted(choosers(cell, policy))
    return "" if names in ([], [policy]) else f" (chosen by {', '.join(names)})"


def _comparison(found: Comparison, colour: dict[str, int], bytes_of: Bytes) -> str:
    metrics, summary = metrics_of(found.summary), found.summary
    metric, every = metrics[0], periods(summary)
    rated = metric in ("rmse", "logloss")
    of = leading(summary, metric)
    against = "last" if "last" in policies(summary) and of != "last" else of
    covered = any(
        paper_figure(found.data, row["metric"], row["every"], row["size"], row["policy"])
        for row in summary
    )
    said = paragraph(
        f"Below our figures: the paper's ({TABLES[metric]}) and the difference, green where ours "
        "is better. learned is held against the paper's DiPS."
        if covered and metric in TABLES
        else "The paper has no figures for this data set."
    )
    tables, others = (
        [means_table(summary, name, e, found.data) for name in names for e in every]
        for names in (metrics[:1], metrics[1:])
    )
    by_size = [_by_size(summary, metric, e, colour) for e in every]
    by_bytes = [
        size_chart(
            summary,
            metric,
            e,
            colour=colour,
            title=f"Quality by bytes per user, every {e}",
            x_label="bytes of a user's record",
            cost=lambda size, period: bytes_of(size, period, rated),
        )
        for e in every
    ]
    pairs = [difference_chart(found.paired, metric, e, against, colour) for e in every]
    equal = [equal_table(summary, metric, e, of) for e in every]
    return "".join([
        said, *tables, charts(*by_size, *by_bytes, *pairs),
        "<h3>Sizes at equal quality</h3>" if any(equal) else "", *equal,
        "<h3>By another measure</h3>" if others else "", *others,
    ])  # fmt: skip


def _by_size(summary: Sequence[Row], metric: str, every: int, colour: dict[str, int]) -> str:
    return size_chart(
        summary, metric, every, colour=colour, title=f"Quality by sketch size, every {every}"
    )


def _experiment(found: Experiment, colour: dict[str, int]) -> str:
    metrics = metrics_of(found.summary)
    every = periods(found.summary)[0]
    sized = [row for row in found.summary if row["size"] > 0]
    without = {row["metric"]: row for row in found.summary if row["size"] == 0}
    drawn = [*sized, *({**row, "policy": NO_SKETCH} for row in without.values())]
    figures = [
        size_chart(drawn, metric, every, colour=colour, title=f"{metric} by sketch size")
        for metric in metrics
    ]
    tables = [means_table(found.summary, metric, every, "") for metric in metrics]
    pairs = difference_chart(found.paired, metrics[0], every, "reservoir", colour)
    told = "".join(f"<li>{escape(text)}</li>" for text in _told(found, metrics))
    return "".join([
        paragraph(CLAIMS[found.kind]),
        f"<h3>Here</h3><ul>{told}</ul>" if told else "",
        *tables, charts(*figures, pairs),
        equal_table(sized, metrics[0], every, leading(sized, metrics[0])),
    ])  # fmt: skip


def _told(found: Experiment, metrics: Sequence[str]) -> list[str]:
    """What an experiment says of itself, metric by metric."""
    saved = [
        f"{row['metric']}: {row['sentence']}"
        for row in found.about.get("saved") or []
        if row.get("metric") in metrics and "sentence" in row
    ]
    gained = [
        f"{row['metric']}: {row['policy']} at {row['size']} is {row['gain']:+.1%} on no sketch"
        for row in found.about.get("gains") or []
        if row.get("metric") == metrics[0]
    ]
    return [*saved, *gained]


def _curves(results: Results, colour: dict[str, int]) -> str:
    compared = [
        f"<h3>{escape(found.name)}</h3>{drawn}"
        for found in results.comparisons
        if (drawn := compared_curves(found, colour))
    ]
    return "".join([*compared, run_scores(results.runs), run_curves(results.runs)])


def _timings(results: Results) -> str:
    compared = [
        timings(found.runs, f"{found.name} (runs of a stack train side by side)")
        for found in results.comparisons
    ]
    return "".join([*compared, timings(results.runs, "Single runs")])


def _settings(results: Results) -> str:
    compared = [settings_tables(c.runs, c.name) for c in results.comparisons if c.runs]
    alone = [settings_tables([run], run.name) for run in results.runs]
    told = [_about(found) for found in results.experiments]
    return "".join([*compared, *told, *alone])


def _about(found: Experiment) -> str:
    told = {name: value for name, value in found.about.items() if name in ABOUT}
    told |= {f"reader: {name}": value for name, value in (found.about.get("reader") or {}).items()}
    rows: list[list[Cell]] = [[name, str(value)] for name, value in told.items()]
    if not rows:
        return ""
    inner = table(["setting", "value"], rows, f"{found.name}: settings")
    return f"<details><summary>Settings of {escape(found.name)}</summary>{inner}</details>"


def _origins(results: Results) -> list[tuple[str, Row]]:
    return [
        *((found.name, found.origin) for found in results.comparisons),
        *((found.name, found.origin) for found in results.experiments),
        *((run.name, run.origin) for run in results.runs),
    ]
