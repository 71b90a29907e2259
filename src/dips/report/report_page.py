"""The report: all results on one self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from dips.evaluation.comparison import BEST_RULE
from dips.report.cards import cards, data_name, fewer_users, metrics_of, reference_policy
from dips.report.markup import (
    NOTHING,
    Cell,
    Markup,
    concatenate,
    figure_grid,
    paragraph,
    section,
    table,
)
from dips.report.page import page
from dips.report.paper_tables import CLAIMS, TABLES, published_result
from dips.report.quality import (
    NO_SKETCH,
    best_rules_table,
    difference_chart,
    equal_quality_table,
    means_table,
    periods,
    policy_colours,
    policy_names,
    size_chart,
)
from dips.report.results import Comparison, Experiment, Results, Row
from dips.report.run_sections import (
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
"""Bytes of a user's record, by sketch size, refresh period and whether there are ratings."""
ABOUT = ("kind", "data", "sizes", "seeds", "folds", "seed", "repeats", "every")
"""Fields of an experiment that are shown as settings."""
TITLES = {"transfer": "Policy transfer", "session": "Sessions with a sketch"}


def report_page(results: Results, *, bytes_of: Bytes, version: str) -> str:
    """Return the report as one HTML page.

    Args:
        results: What `read_results` found.
        bytes_of: Bytes of a user's record, by size, refresh period and whether there are ratings.
        version: Version of dips, for the footer.
    """
    names = [p for c in results.comparisons for p in policy_names(c.summary)]
    names += [p for e in results.experiments for p in policy_names(e.summary)]
    colour = policy_colours(list(dict.fromkeys([*names, NO_SKETCH])))
    runs = [*results.runs, *(run for c in results.comparisons for run in c.runs)]
    stages = concatenate(*(stages_table(paper) for paper in results.papers))
    parts: list[tuple[str, str, Markup]] = [("stages", "Stages", stages)]
    for place, comparison in enumerate(results.comparisons):
        body = _comparison(comparison, colour, bytes_of)
        parts.append((f"compare-{place}", f"Policies on {data_name(comparison, results)}", body))
    for place, experiment in enumerate(results.experiments):
        data = Path(experiment.about.get("data", experiment.name)).stem
        title = f"{TITLES[experiment.kind]}: {data}"
        parts.append((f"{experiment.kind}-{place}", title, _experiment(experiment, colour)))
    parts.append(("gradients", "Policy gradients", gradient_figures(runs)))
    parts.append(("curves", "Training", _curves(results, colour)))
    parts.append(("timings", "Timings", _timings(results)))
    parts.append(("settings", "Settings", _settings(results)))
    parts.append(("origins", "Commands and environment", origins(_origins(results))))
    sections = [(name, title, body) for name, title, body in parts if body]
    links = "".join(f'<li><a href="#{n}">{escape(title)}</a></li>' for n, title, _ in sections)
    content = f"""<header>
<h1>Which interactions to keep</h1>
<p class="summary">{escape(_summary_sentence(results))}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main id="main">{cards(results)}{"".join(section(*part) for part in sections)}</main>
<footer>Made by dips {escape(version)}. This page loads nothing from the network.</footer>"""
    return page("dips: which interactions to keep", content)


def _summary_sentence(results: Results) -> str:
    counted = {
        "comparison": len(results.comparisons),
        "experiment": len(results.experiments),
        "single run": len(results.runs),
    }
    counts = [f"{n} {name}{'s' if n > 1 else ''}" for name, n in counted.items() if n]
    listed = ", ".join(counts[:-1]) + (" and " if counts[1:] else "") + counts[-1]
    return (
        f"Sketching policies keep K of each user's interactions; a recommender reads them and "
        f"predicts the next one. Results of {listed}."
    )


def _comparison(found: Comparison, colour: dict[str, int], bytes_of: Bytes) -> Markup:
    metrics, summary = metrics_of(found.summary), found.summary
    metric, every = metrics[0], periods(summary)
    rated = metric in ("rmse", "logloss")
    of = reference_policy(summary, metric)
    against = "last" if "last" in policy_names(summary) and of != "last" else of
    covered = any(
        published_result(found.data, row["metric"], row["every"], row["size"], row["policy"])
        for row in summary
    )
    if covered and metric in TABLES:
        few = fewer_users(found)
        note = (
            f"Below our results: those of the paper ({TABLES[metric]}) and the difference, green "
            "if ours is better. learned is compared with the paper's DiPS."
        ) + (f" Here are {few}: the difference says little about a policy." if few else "")
    else:
        note = "The paper has no results for this dataset."
    tables, others = (
        [means_table(summary, name, e, found.data, found.paired) for name in names for e in every]
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
    references = dict.fromkeys([against, *([BEST_RULE] if found.best_rules else [])])
    pairs = [
        difference_chart(found.paired, metric, e, to, colour)
        for to in references
        if any(to in (row["a"], row["b"]) for row in found.paired) or to == against
        for e in every
    ]
    equal = [equal_quality_table(summary, metric, e, of) for e in every]
    return concatenate(
        paragraph(note), *tables, best_rules_table(found.best_rules),
        figure_grid(*by_size, *by_bytes, *pairs),
        Markup("<h3>Sizes at equal quality</h3>") if any(equal) else NOTHING, *equal,
        Markup("<h3>By another metric</h3>") if others else NOTHING, *others,
    )  # fmt: skip


def _by_size(summary: Sequence[Row], metric: str, every: int, colour: dict[str, int]) -> Markup:
    return size_chart(
        summary, metric, every, colour=colour, title=f"Quality by sketch size, every {every}"
    )


def _experiment(found: Experiment, colour: dict[str, int]) -> Markup:
    metrics = metrics_of(found.summary)
    every = periods(found.summary)[0]
    sized = [row for row in found.summary if row["size"] > 0]
    without = {row["metric"]: row for row in found.summary if row["size"] == 0}
    drawn = [*sized, *({**row, "policy": NO_SKETCH} for row in without.values())]
    figures = [
        size_chart(drawn, metric, every, colour=colour, title=f"{metric} by sketch size")
        for metric in metrics
    ]
    tables = [means_table(found.summary, metric, every, "", found.paired) for metric in metrics]
    pairs = difference_chart(found.paired, metrics[0], every, "reservoir", colour)
    listed = "".join(f"<li>{escape(text)}</li>" for text in _findings(found, metrics))
    return concatenate(
        paragraph(CLAIMS[found.kind]),
        Markup(f"<h3>Here</h3><ul>{listed}</ul>") if listed else NOTHING,
        *tables, figure_grid(*figures, pairs),
        equal_quality_table(sized, metrics[0], every, reference_policy(sized, metrics[0])),
    )  # fmt: skip


def _findings(found: Experiment, metrics: Sequence[str]) -> list[str]:
    """Return the findings of an experiment as sentences."""
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


def _curves(results: Results, colour: dict[str, int]) -> Markup:
    compared = [
        Markup(f"<h3>{escape(found.name)}</h3>{drawn}")
        for found in results.comparisons
        if (drawn := compared_curves(found, colour))
    ]
    return concatenate(*compared, run_scores(results.runs), run_curves(results.runs))


def _timings(results: Results) -> Markup:
    compared = [
        timings(found.runs, f"{found.name} (stacked runs train together)")
        for found in results.comparisons
    ]
    return concatenate(*compared, timings(results.runs, "Single runs"))


def _settings(results: Results) -> Markup:
    compared = [settings_tables(c.runs, c.name) for c in results.comparisons if c.runs]
    single = [settings_tables([run], run.name) for run in results.runs]
    experiments = [_about(found) for found in results.experiments]
    return concatenate(*compared, *experiments, *single)


def _about(found: Experiment) -> Markup:
    values = {name: value for name, value in found.about.items() if name in ABOUT}
    values |= {
        f"target model: {name}": value
        for name, value in (found.about.get("target_model") or {}).items()
    }
    rows: list[list[Cell]] = [[name, str(value)] for name, value in values.items()]
    if not rows:
        return NOTHING
    inner = table(["setting", "value"], rows, f"{found.name}: settings")
    return Markup(f"<details><summary>Settings of {escape(found.name)}</summary>{inner}</details>")


def _origins(results: Results) -> list[tuple[str, Row]]:
    return [
        *((found.name, found.origin) for found in results.comparisons),
        *((found.name, found.origin) for found in results.experiments),
        *((run.name, run.origin) for run in results.runs),
    ]
