"""Sections about runs: gradients, training curves, timings, settings, commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import mean
from typing import Any

from dips.evaluation.metrics import primary_metric
from dips.report.charts import BarSegment, Point, Series, bar_chart, legend, line_chart
from dips.report.markup import (
    NOTHING,
    Cell,
    Markup,
    figure,
    figure_grid,
    format_seconds,
    paragraph,
    table,
)
from dips.report.results import Comparison, Row, RunRecord

SHARES = {"preserved": "var(--c2)", "negated": "var(--c1)", "zeroed": "var(--c7)"}
"""Colour of each outcome of a gradient entry."""
UNRECORDED = "No command was recorded: these results come from Python, or from an older dips."
CELL = ("policy", "size", "every", "seed", "fold", "repeat", "periods")
"""Settings that name a cell of the comparison; they are not listed."""


def gradient_figures(runs: Sequence[RunRecord]) -> Markup:
    """Return charts of the signs of true policy gradients, with the paper's."""
    return figure_grid(*(_gradients(run) for run in runs if run.gradients))


def _gradients(run: RunRecord) -> Markup:
    found = run.gradients or {}
    bars, lines = [], list[list[Cell]]()
    for method in found["ours"]:
        for who, shares in (("here", found["ours"]), ("paper", found["paper_ml_1m"])):
            name, own = f"{method}, {who}", shares[method]
            parts = [BarSegment(part, fill, own[part]) for part, fill in SHARES.items()]
            bars.append((name, parts))
            lines.append([name, *(f"{own[part]:.1%}" for part in (*SHARES, "made_nonzero"))])
    title = f"Signs of the true policy gradient: {run.name}"
    note = (
        f"non-zero entries at {found['steps']} steps of {found['users']} users of "
        f"{found['data']}; the paper's are of MovieLens 1M"
    )
    names = "".join(
        f'<li><span class="swatch" style="background:{fill}"></span>{part}</li>'
        for part, fill in SHARES.items()
    )
    numbers = table(["method", *SHARES, "zero made non-zero"], lines, title)
    chart = bar_chart(bars, title=title)
    key = Markup(f'<ul class="legend">{names}</ul>')
    return figure(title, note, chart, legend=key, numbers=numbers)


def run_scores(runs: Sequence[RunRecord]) -> Markup:
    """Return a table of the scores of single runs, and the policy that each run kept."""
    rows: list[list[Cell]] = []
    for run in runs:
        own = run.metrics
        valid, test = own.get("valid") or {}, own.get("test") or {}
        names = list(valid) or list(test)
        size = "–" if own["policy"] == "all" else str(own["size"])  # noqa: RUF001
        metric = primary_metric(dict.fromkeys(names, 0.0)) if names else ""
        values = [f"{part[metric]:.4f}" if metric in part else "–" for part in (valid, test)]  # noqa: RUF001
        kept = str(own.get("kept_policy", own["policy"]))
        rows.append([run.name, str(own["policy"]), size, metric, *values, kept])
    head = ["run", "policy", "K", "metric", "validation", "test", "chosen by"]
    return table(head, rows, "Single runs: scores of the selected epoch") if rows else NOTHING


def run_curves(runs: Sequence[RunRecord]) -> Markup:
    """Return charts of training loss and validation score of single runs by epoch."""
    with_history = [run for run in runs if run.history]
    return figure_grid(*(_curve(run, what) for run in with_history for what in ("valid", "loss")))


def _curve(run: RunRecord, what: str) -> Markup:
    metric = str(run.history[0].get("metric", "score"))
    if what == "loss":
        lines = {"training loss": [(row["epoch"], row["train_loss"]) for row in run.history]}
        label = "training loss"
    else:
        lines = {"validation": [(row["epoch"], abs(row["valid"])) for row in run.history]}
        baselines = [
            (row["epoch"], abs(row["baseline"])) for row in run.history if "baseline" in row
        ]
        lines |= {"best baseline": baselines} if baselines else {}
        label = f"validation {metric}"
    return _epochs(f"{run.name}: {label}", label, lines, {"training loss": 1, "best baseline": 7})


def compared_curves(comparison: Comparison, colour: Mapping[str, int]) -> Markup:
    """Return charts of validation scores by epoch at the middle size: means over splits."""
    runs = [run for run in comparison.runs if run.history]
    if not runs:
        return NOTHING
    sizes = sorted({run.metrics["size"] for run in runs})
    size = sizes[len(sizes) // 2]
    metric = str(runs[0].history[0].get("metric", "score"))
    figures = []
    for every in sorted({run.metrics["every"] for run in runs}):
        lines: dict[str, dict[int, list[float]]] = {}
        for run in runs:
            if (run.metrics["size"], run.metrics["every"]) == (size, every):
                own = lines.setdefault(run.metrics["policy"], {})
                for row in run.history:
                    own.setdefault(row["epoch"], []).append(abs(row["valid"]))
        means = {
            name: [(e, mean(v)) for e, v in sorted(own.items())] for name, own in lines.items()
        }
        title = f"Validation {metric} by epoch, K = {size}, every {every}"
        figures.append(_epochs(title, f"validation {metric}", means, colour))
    return figure_grid(*figures)


def _epochs(
    title: str,
    label: str,
    lines: Mapping[str, Sequence[tuple[int, float]]],
    colour: Mapping[str, int],
) -> Markup:
    series = [
        Series(name, colour.get(name, 0), tuple(
            Point(epoch, value, note=f"{name}, epoch {epoch}: {value:.4f}") for epoch, value in own
        ))
        for name, own in lines.items()
    ]  # fmt: skip
    epochs = sorted({epoch for own in lines.values() for epoch, _ in own})
    ticks = epochs[:: max(1, len(epochs) // 8)]
    chart = line_chart(series, title=title, x_label="epoch", y_label=label, x_ticks=ticks)
    known = {name: dict(own) for name, own in lines.items()}
    rows = [
        [str(e), *(f"{own[e]:.4f}" if e in own else "" for own in known.values())] for e in epochs
    ]
    numbers = table(["epoch", *lines], rows, title)
    return figure(title, "", chart, legend=legend(series), numbers=numbers)


def timings(runs: Sequence[RunRecord], caption: str) -> Markup:
    """Return a table of training time, throughput and memory by policy."""
    groups: dict[str, list[Row]] = {}
    for run in runs:
        groups.setdefault(run.metrics["policy"], []).append(run.metrics)
    if not groups:
        return NOTHING
    rows: list[list[Cell]] = [
        [
            policy,
            str(len(own)),
            f"{mean(row['epochs'] for row in own):.1f}",
            format_seconds(mean(row["train_seconds"] for row in own)),
            f"{mean(row['interactions_per_second'] for row in own):,.0f}",
            f"{max(row['peak_memory_bytes'] for row in own) / 2**20:,.0f} MB",
        ]
        for policy, own in groups.items()
    ]
    head = ["policy", "runs", "epochs", "training", "interactions/s", "peak memory"]
    return table(head, rows, f"{caption}: means over runs")


def settings_tables(runs: Sequence[RunRecord], caption: str) -> Markup:
    """Return a table of the settings that differ between policies, and the others.

    The others are in a collapsed <details>.
    """
    by_policy: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        own = by_policy.setdefault(str(run.config["policy"]), {})
        for name, value in run.config.items():
            own.setdefault(name, set()).add(_setting(value))
    names = [name for name in _union(by_policy.values()) if name not in CELL]
    values = {n: [_joined(own.get(n, set())) for own in by_policy.values()] for n in names}
    own_rows: list[list[Cell]] = [
        [name, *cells] for name, cells in values.items() if len(set(cells)) > 1
    ]
    shared: list[list[Cell]] = [
        [name, cells[0]] for name, cells in values.items() if len(set(cells)) == 1
    ]
    differing = NOTHING
    if own_rows:
        differing = table(["setting", *by_policy], own_rows, f"{caption}: what policies differ in")
    common = table(["setting", "value"], shared, f"{caption}: what all runs share")
    name = escape(caption)
    return Markup(
        f"{differing}<details><summary>All settings of {name}</summary>{common}</details>"
    )


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"  # noqa: RUF001
    return "–" if value == "" else str(value)  # noqa: RUF001


def _joined(values: set[str]) -> str:
    return " / ".join(sorted(values))


def _union(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group))


def origins(found: Sequence[tuple[str, Mapping[str, Any]]]) -> Markup:
    """Return the command and the environment of each result."""
    parts = []
    for name, origin in found:
        command = origin.get("command")
        title = f"<h3>{escape(name)}</h3>"
        if not command:
            parts.append(f"{title}{paragraph(UNRECORDED)}")
            continue
        words = command if isinstance(command, str) else " ".join(map(str, command))
        parts.append(
            f"{title}<pre>{escape(words)}</pre>{_environment(origin.get('environment') or {})}"
        )
    return Markup("".join(parts))


def _environment(environment: Mapping[str, Any]) -> Markup:
    rows: list[list[Cell]] = [
        [str(name), Markup(f"<span>{escape(str(value))}</span>")]
        for name, value in environment.items()
    ]
    if not rows:
        return NOTHING
    inner = table(["what", "found"], rows, "Environment in which it was made")
    return Markup(f"<details><summary>Environment</summary>{inner}</details>")
