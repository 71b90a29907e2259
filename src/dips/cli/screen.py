"""Terminal output: progress on standard error, tables on standard output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dips.report.markup import format_seconds
from dips.studies.progress import (
    CountCallback,
    EpochReport,
    StudyCallback,
    StudyProgress,
    TrainingCallback,
    TrainingReport,
)
from dips.studies.progress_lines import StudyLines, TrainingLines

if TYPE_CHECKING:
    from dips.studies.policy_transfer import TransferResult
    from dips.training.resolve import Decision


@contextmanager
def _bar(title: str, total: int | None = None) -> Iterator[tuple[Progress, Any]]:
    """Yield a progress bar and its task."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress, progress.add_task(title, total=total, speed="")


@contextmanager
def show_training() -> Iterator[TrainingCallback]:
    """Yield a callback that shows a bar over epochs; without a terminal, lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield TrainingLines(partial(console.print, highlight=False))
        return
    with _bar("training") as (progress, task):
        validation = ""

        def update_bar(report: TrainingReport) -> None:
            nonlocal validation
            if isinstance(report, EpochReport):
                validation = f"validation {abs(report.valid[0]):.4f}, "
            rate = f"{report.interactions_per_second / 1000:.0f}K interactions/s"
            progress.update(
                task,
                description=report.role or "training",
                total=report.total,
                completed=report.done,
                speed=validation + rate,
            )

        yield update_bar


@contextmanager
def show_study() -> Iterator[StudyCallback]:
    """Yield a callback that shows the progress of a study; without a terminal, as lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield StudyLines(partial(console.print, highlight=False))
        return
    with _bar("comparing") as (progress, task):

        def update_bar(study: StudyProgress) -> None:
            rate = study.interactions_per_second
            progress.update(
                task,
                description=study.phase,
                total=study.total,
                completed=study.done,
                speed=f"{rate / 1000:.0f}K interactions/s" if rate else "",
            )

        yield update_bar


@contextmanager
def show_count(title: str, unit: str) -> Iterator[CountCallback]:
    """Yield a callback that shows a bar over a number of units; without a terminal, lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = StudyLines(partial(console.print, highlight=False))
        yield lambda done, total: lines(StudyProgress(title, done, total, unit=unit))
        return
    with _bar(title) as (progress, task):
        yield lambda done, total: progress.update(task, completed=done, total=total)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object as the last line of standard output."""
    print(json.dumps(value))


def print_decisions(decisions: Sequence[Decision]) -> None:
    """Print the settings that were decided from the data, with reasons, on standard error."""
    table = Table(title="Decided from the data", box=None, title_justify="left")
    for heading in ("setting", "value", "why"):
        table.add_column(heading)
    for setting, value, reason in decisions:
        if not reason.startswith("default"):
            shown = ",".join(value) if isinstance(value, tuple) else str(value)
            shown = f"{value:g}" if isinstance(value, float) else shown
            table.add_row(setting, shown or "none", reason)
    Console(stderr=True).print(table)


def print_metrics(title: str, parts: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table with one row per part and one column per metric."""
    names = list(dict.fromkeys(name for metrics in parts.values() for name in metrics))
    print(title)
    table = Table()
    table.add_column("part")
    for name in names:
        table.add_column(name, justify="right")
    for part, metrics in parts.items():
        table.add_row(part, *(f"{metrics[name]:.4f}" if name in metrics else "" for name in names))
    Console().print(table)


def print_verdict(text: str) -> None:
    """Print the verdict, if there is one."""
    if text:
        print(f"verdict: {text}")


def print_summary(
    summary: Sequence[Mapping[str, Any]],
    metric: str,
    title: str,
    paired: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Print mean and standard deviation over folds by policy and sketch size.

    The best policies are bold: those with the best mean, and those not significantly different.
    """
    from dips.evaluation.significance import best_policies

    rows = [row for row in summary if row["metric"] == metric]
    columns = sorted({(row["every"], row["size"]) for row in rows})
    best = {
        (every, size): best_policies(rows, paired, metric, size, every) for every, size in columns
    }
    table = Table(title=title, title_justify="left")
    table.add_column("policy")
    for every, size in columns:
        table.add_column(f"K={size}" if every == 1 else f"K={size} every {every}", justify="right")
    for policy in dict.fromkeys(row["policy"] for row in rows):
        found = {(r["every"], r["size"]): r for r in rows if r["policy"] == policy}
        cells = [_cell(found.get(column), policy in best[column]) for column in columns]
        table.add_row(policy, *cells)
    Console().print(table)


def _cell(row: Mapping[str, Any] | None, is_best: bool) -> str:
    if row is None:
        return ""
    text = f"{row['mean']:.4f}" + (f" ± {row['std']:.4f}" if row["n"] > 1 else "")
    return f"[bold]{text}[/bold]" if is_best else text


def print_pairs(
    summary: Sequence[Mapping[str, Any]],
    paired: Sequence[Mapping[str, Any]],
    metric: str,
    against: str,
) -> None:
    """Print the differences to one policy: gain, folds, 95 % interval over users, p-value.

    The gain is relative, and above 0 if the policy is better. Significant gains are bold.
    """
    title = f"test {metric}, difference to {against} (95 %; folds that agree; bold: significant)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for name in ("policy", "K, every", "gain (folds)", "diff", "interval", "p (Holm)"):
        justify: Literal["left", "right"] = "left" if name == "policy" else "right"
        table.add_column(name, justify=justify, no_wrap=name != "p (Holm)", min_width=6)
    base = {
        (row["size"], row["every"]): row["mean"]
        for row in summary
        if row["metric"] == metric and row["policy"] == against
    }
    for row in paired:
        if row["metric"] != metric or against not in (row["a"], row["b"]):
            continue
        sign = 1 if row["b"] == against else -1
        other = row["a"] if sign == 1 else row["b"]
        low, high = sorted((sign * row["low"], sign * row["high"]))
        table.add_row(
            other,
            f"{row['size']}, {row['every']}",
            _gain(row, sign, base[row["size"], row["every"]]),
            f"{sign * row['diff']:+.4f}",
            f"{low:+.4f} to {high:+.4f}",
            f"{row['p']:.4f}",
        )
    if table.row_count:
        Console().print(table)


def _gain(row: Mapping[str, Any], sign: int, base: float) -> str:
    """Return '+0.4 % (5 of 5)', bold if significant; above 0 is better."""
    from dips.evaluation.metrics import LOWER_IS_BETTER
    from dips.evaluation.significance import agreeing_folds, is_significant

    better = -sign if row["metric"] in LOWER_IS_BETTER else sign
    text = f"{100 * better * row['diff'] / base:+.1f} %" if base else ""
    folds = f" ({agreeing_folds(row)} of {len(row['folds'])})" if row.get("folds") else ""
    return f"[bold]{text}{folds}[/bold]" if is_significant(row) else text + folds


def print_best_rules(best_rules: Sequence[Mapping[str, Any]]) -> None:
    """Print which rules are best on validation, in how many folds, by size and period."""
    for size, every in dict.fromkeys((row["size"], row["every"]) for row in best_rules):
        chosen = Counter(
            row["policy"] for row in best_rules if (row["size"], row["every"]) == (size, every)
        )
        when = "" if every == 1 else f" every {every}"
        listed = ", ".join(f"{name} in {count}" for name, count in chosen.most_common())
        print(f"best rule on validation at K={size}{when}: {listed} of {chosen.total()} folds")


def print_kept(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the runs in which a baseline was kept instead of the policy."""
    for row in rows:
        if row["kept_policy"] != row["policy"]:
            when = "" if row["every"] == 1 else f" every {row['every']}"
            repeat = f", repeat {row['repeat']}" if row["repeat"] else ""
            cell = f"{row['policy']} at {row['size']}{when}, fold {row['fold']}{repeat}"
            print(f"{cell}: {kept_baseline(row['kept_policy'])}")


def kept_baseline(name: str) -> str:
    """Return the sentence that names a baseline which was kept instead of the policy."""
    return f"the baseline {name} is kept: it is better on validation"


def print_saved(about: Mapping[str, Any], metrics: Sequence[str]) -> None:
    """Print the largest savings against reservoir at equal quality, and the paper's claim."""
    for row in about["saved"]:
        if row["metric"] in metrics:
            best = "" if row["bound"] == "below" else "at best "
            print(f"{row['metric']}: {best}{row['sentence']}")
    print(f"the paper: {about['paper']['claim']}")


def print_gains(gains: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Print the gains of session models with a sketch over the one without."""
    for row in gains:
        if row["metric"] == metric and row["gain"] is not None:
            text = f"{metric}: {row['policy']} at {row['size']} gains {100 * row['gain']:+.1f} %"
            print(f"{text} over no sketch")


def print_transfer(result: TransferResult, title: str, out: Path) -> None:
    """Print the result of a transfer or session study."""
    metrics = ("recall@20", "mrr@20")
    for metric in metrics:
        print_summary(result.summary, metric, f"test {metric} on {title}", result.paired)
    print_gains(result.about.get("gains", ()), metrics[0])
    print_kept(result.rows)
    print_saved(result.about, metrics)
    print(f"all rows, ratios and runs are in {out}; the figure is {out}/figure.png")


ENTRIES = {
    "preserved": "non-zero: sign preserved",
    "negated": "non-zero: sign negated",
    "zeroed": "non-zero: zeroed",
    "made_nonzero": "zero: made non-zero",
}
"""Labels of the shares of gradient entries."""


def print_gradients(found: Mapping[str, Any]) -> None:
    """Print the shares of gradient entries by method, beside those of the paper."""
    print(
        f"{found['policy']}, K = {found['size']}, on {found['data']}: {found['steps']} steps of "
        f"{found['users']} users, {found['entries']} entries each, queue {found['queue']}"
    )
    table = Table()
    table.add_column("entries of the true gradient")
    for name in ("DiPS", "DiPS@1"):
        table.add_column(name, justify="right")
        table.add_column("paper (ML-1M)", justify="right")
    ours, paper = found["ours"], found["paper_ml_1m"]
    for key, label in ENTRIES.items():
        pairs = [(ours[name][key], paper[name][key]) for name in ("dips", "dips@1")]
        table.add_row(label, *(f"{100 * share:.2f} %" for pair in pairs for share in pair))
    for key, label in (("cosine", "cosine similarity"), ("length", "relative norm")):
        table.add_row(label, f"{ours['dips'][key]:.2f}", "", f"{ours['dips@1'][key]:.2f}", "")
    Console().print(table)
    print(f"zero: at most {found['tolerance']:g} of the largest entry of the same gradient")


def print_stages(stages: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the state and the time of each stage, and why it was skipped."""
    table = Table()
    for name in ("stage", "state", "time", ""):
        table.add_column(name, justify="right" if name == "time" else "left")
    for name, stage in stages.items():
        table.add_row(name, stage["state"], format_seconds(stage["seconds"]), escape(stage["why"]))
    Console().print(table)


def print_sketch(found: Mapping[str, Any]) -> None:
    """Print the sketch of one user, oldest entries first."""
    print(f"{found['user']}: {found['seen']} interactions, policy version {found['policy']}")
    table = Table()
    for name in ("position", "item", "rating", "time", "repeats", ""):
        table.add_column(name, justify="left" if name in ("item", "") else "right")
    for part, state in (("entries", ""), ("waiting", "waits for a refresh")):
        for row in found[part]:
            values = (row["position"], row["item"], row["rating"], row["time"], row["repeats"])
            table.add_row(*(escape(str(value)) for value in values), state)
    Console().print(table)
