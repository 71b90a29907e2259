"""What runs tell beside their quality: gradients, training curves, timings, settings, origins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import mean
from typing import Any

from dips.evaluation.metrics import headline
from dips.report.charts import Point, Series, Share, bar_chart, legend, line_chart
from dips.report.markup import Cell, Markup, charts, figure, paragraph, seconds, table
from dips.report.results import Comparison, Row, Run

SHARES = {"preserved": "var(--c2)", "negated": "var(--c1)", "zeroed": "var(--c7)"}
"""What can become of an entry of the true gradient, and its colour."""
UNRECORDED = "No command was recorded: these were made from Python, or by an older dips."
CELL = ("policy", "size", "every", "seed", "periods")
"""Settings that a table is over."""


def gradient_figures(runs: Sequence[Run]) -> str:
    """What became of the entries of the true policy gradient, ours beside the paper's."""
    return charts(*(_gradients(run) for run in runs if run.gradients))


def _gradients(run: Run) -> str:
    found = run.gradients or {}
    bars, lines = [], list[list[Cell]]()
    for method in found["ours"]:
        for who, shares in (("here", found["ours"]), ("paper", found["paper_ml_1m"])):
            name, own = f"{method}, {who}", shares[method]
            bars.append((name, [Share(part, ink, own[part]) for part, ink in SHARES.items()]))
            lines.append([name, *(f"{own[part]:.1%}" for part in (*SHARES, "made_nonzero"))])
    title = f"Signs of the true policy gradient: {run.name}"
    note = (
        f"non-zero entries at {found['steps']} steps of {found['users']} users of "
        f"{found['data']}; the paper's are of MovieLens 1M"
    )
    key = "".join(
        f'<li><span class="swatch" style="background:{ink}"></span>{part}</li>'
        for part, ink in SHARES.items()
    )
    numbers = table(["method", *SHARES, "zero made non-zero"], lines, title)
    chart = bar_chart(bars, title=title)
    return figure(title, note, chart, key=f'<ul class="legend">{key}</ul>', numbers=numbers)


def run_scores(runs: Sequence[Run]) -> str:
    """What single runs came to on validation and test, and who chose."""
    rows: list[list[Cell]] = []
    for run in runs:
        own = run.metrics
        valid, test = own.get("valid") or {}, own.get("test") or {}
        names = list(valid) or list(test)
        size = "–" if own["policy"] == "all" else str(own["size"])  # noqa: RUF001
        metric = headline(dict.fromkeys(names, 0.0)) if names else ""
        values = [f"{part[metric]:.4f}" if metric in part else "–" for part in (valid, test)]  # noqa: RUF001
        kept = str(own.get("kept_policy", own["policy"]))
        rows.append([run.name, str(own["policy"]), size, metric, *values, kept])
    head = ["run", "policy", "K", "metric", "validation", "test", "chosen by"]
    return table(head, rows, "Single runs: scores of the epoch that stayed") if rows else ""


def run_curves(runs: Sequence[Run]) -> str:
    """Training loss and validation of single runs by epoch."""
    return charts(*(_curve(run, what) for run in runs if run.history for what in ("valid", "loss")))


def _curve(run: Run, what: str) -> str:
    metric = str(run.history[0].get("metric", "score"))
    if what == "loss":
        lines = {"training loss": [(row["epoch"], row["train_loss"]) for row in run.history]}
        label = "training loss"
    else:
        lines = {"validation": [(row["epoch"], abs(row["valid"])) for row in run.history]}
        baselines = [
            (row["epoch"], abs(row["baseline"])) for row in run.history if "baseline" in row
        ]
        lines |= {"its best rival": baselines} if baselines else {}
        label = f"validation {metric}"
    return _epochs(f"{run.name}: {label}", label, lines, {"training loss": 1, "its best rival": 7})


def compared_curves(comparison: Comparison, colour: Mapping[str, int]) -> str:
    """Validation by epoch at the middle size and each period: means over splits."""
    runs = [run for run in comparison.runs if run.history]
    if not runs:
        return ""
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
    return charts(*figures)


def _epochs(
    title: str,
    label: str,
    lines: Mapping[str, Sequence[tuple[int, float]]],
    colour: Mapping[str, int],
) -> str:
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
    key = legend(series)
    return figure(title, "", chart, key=key, numbers=table(["epoch", *lines], rows, title))


def timings(runs: Sequence[Run], caption: str) -> str:
    """How long runs took, what they needed, by policy."""
    groups: dict[str, list[Row]] = {}
    for run in runs:
        groups.setdefault(run.metrics["policy"], []).append(run.metrics)
    if not groups:
        return ""
    rows: list[list[Cell]] = [
        [
            policy,
            str(len(own)),
            f"{mean(row['epochs'] for row in own):.1f}",
            seconds(mean(row["train_seconds"] for row in own)),
            f"{mean(row['interactions_per_second'] for row in own):,.0f}",
            f"{max(row['peak_memory_bytes'] for row in own) / 2**20:,.0f} MB",
        ]
        for policy, own in groups.items()
    ]
    head = ["policy", "runs", "epochs", "training", "interactions/s", "peak memory"]
    return table(head, rows, f"{caption}: means over runs")


def settings_tables(runs: Sequence[Run], caption: str) -> str:
    """What the policies' settings differ in, and, to unfold, what they share."""
    by_policy: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        own = by_policy.setdefault(str(run.config["policy"]), {})
        for name, value in run.config.items():
            own.setdefault(name, set()).add(_setting(value))
    names = [name for name in _union(by_policy.values()) if name not in CELL]
    told = {n: [_joined(own.get(n, set())) for own in by_policy.values()] for n in names}
    own_rows: list[list[Cell]] = [
        [name, *cells] for name, cells in told.items() if len(set(cells)) > 1
    ]
    shared: list[list[Cell]] = [
        [name, cells[0]] for name, cells in told.items() if len(set(cells)) == 1
    ]
    differing = ""
    if own_rows:
        differing = table(["setting", *by_policy], own_rows, f"{caption}: what policies differ in")
    common = table(["setting", "value"], shared, f"{caption}: what all runs share")
    name = escape(caption)
    return f"{differing}<details><summary>All settings of {name}</summary>{common}</details>"


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"  # noqa: RUF001
    return "–" if value == "" else str(value)  # noqa: RUF001


def _joined(values: set[str]) -> str:
    return " / ".join(sorted(values))


def _union(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group))


def origins(found: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """By name of the results: the exact command, and where it ran."""
    parts = []
    for name, origin in found:
        command = origin.get("command")
        said = f"<h3>{escape(name)}</h3>"
        if not command:
            parts.append(
                said
                + paragraph(
                    "No command was recorded: these were made from Python, or by an older dips."
                )
            )
            continue
        words = command if isinstance(command, str) else " ".join(map(str, command))
        parts.append(f"{said}<pre>{escape(words)}</pre>{_facts(origin.get('environment') or {})}")
    return "".join(parts)


def _facts(environment: Mapping[str, Any]) -> str:
    rows: list[list[Cell]] = [
        [str(name), Markup(f"<span>{escape(str(value))}</span>")]
        for name, value in environment.items()
    ]
    if not rows:
        return ""
    inner = table(["what", "found"], rows, "Environment in which it was made")
    return f"<details><summary>Environment</summary>{inner}</details>"
