"""What people see: progress on standard error, tables on standard output."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dips.evaluation.metrics import LOWER_IS_BETTER
from dips.report.markup import seconds
from dips.studies.compare import Update
from dips.studies.compare import Watch as StudyWatch
from dips.studies.policy_transfer import Result
from dips.studies.result import Moment, Watch

PLAIN_EVERY = 5.0
"""Seconds between lines where there is no terminal."""


@contextmanager
def _bar(what: str, total: int | None = None) -> Iterator[tuple[Progress, Any]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress, progress.add_task(what, total=total, note="")


@contextmanager
def watch_training(epochs: int) -> Iterator[Watch]:
    """A bar over epochs with rate and validation; without a terminal, a line per epoch."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda moment: console.print(_line(moment), highlight=False)
        return
    with _bar("training", epochs) as (progress, task):
        yield lambda moment: progress.update(
            task, total=moment.epochs, completed=moment.epoch, note=_note(moment)
        )


@contextmanager
def watch_study() -> Iterator[StudyWatch]:
    """A bar over epochs of all runs, or now and then a line where there is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        told = time.monotonic()

        def tell(update: Update) -> None:
            nonlocal told
            if time.monotonic() - told >= PLAIN_EVERY or update.done == update.total:
                told = time.monotonic()
                text = f"{update.stage}: {update.done} of {update.total} {update.things}"
                console.print(text, highlight=False)

        yield tell
        return
    with _bar("comparing") as (progress, task):

        def follow(update: Update) -> None:
            rate = update.interactions_per_second
            note = f"{rate / 1000:.0f}K interactions/s" if rate else ""
            progress.update(
                task,
                description=update.stage,
                total=update.total,
                completed=update.done,
                note=note,
            )

        yield follow


@contextmanager
def watch_count(what: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over so many things, or now and then a line where there is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        told = time.monotonic()

        def tell(done: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told >= PLAIN_EVERY or done == total:
                told = time.monotonic()
                console.print(f"{what}: {done} of {total} {things}", highlight=False)

        yield tell
        return
    with _bar(what) as (progress, task):
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _line(moment: Moment) -> str:
    return f"epoch {moment.epoch} of {moment.epochs}: {_note(moment)}"


def _note(moment: Moment) -> str:
    rate = moment.interactions_per_second / 1000
    whose = "rival's " if moment.baseline else ""
    return f"{whose}validation {abs(moment.valid[0]):.4f}, {rate:.0f}K interactions/s"


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on the last line of standard output."""
    print(json.dumps(value))


def print_metrics(title: str, parts: Mapping[str, Mapping[str, float]]) -> None:
    """A small table: one row per part, one column per metric."""
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
    """What all the numbers come to, in one line, where there is something to say."""
    if text:
        print(f"verdict: {text}")


def print_summary(summary: Sequence[Mapping[str, Any]], metric: str, title: str) -> None:
    """Policies by sketch size: mean and standard deviation over seeds, the best in bold."""
    rows = [row for row in summary if row["metric"] == metric]
    columns = sorted({(row["every"], row["size"]) for row in rows})
    best = {
        column: (min if metric in LOWER_IS_BETTER else max)(
            row["mean"] for row in rows if (row["every"], row["size"]) == column
        )
        for column in columns
    }
    table = Table(title=title, title_justify="left")
    table.add_column("policy")
    for every, size in columns:
        table.add_column(f"K={size}" if every == 1 else f"K={size} every {every}", justify="right")
    for policy in dict.fromkeys(row["policy"] for row in rows):
        found = {(r["every"], r["size"]): r for r in rows if r["policy"] == policy}
        cells = [_cell(found.get(column), best[column]) for column in columns]
        table.add_row(policy, *cells)
    Console().print(table)


def _cell(row: Mapping[str, Any] | None, best: float) -> str:
    if row is None:
        return ""
    text = f"{row['mean']:.4f}" + (f" ± {row['std']:.4f}" if row["n"] > 1 else "")
    return f"[bold]{text}[/bold]" if row["mean"] == best else text


def print_pairs(paired: Sequence[Mapping[str, Any]], metric: str, against: str) -> None:
    """Differences of every policy to one of them, with intervals and corrected p-values."""
    table = Table(title=f"test {metric}, difference to {against} (95 %)", title_justify="left")
    for name in ("policy", "K", "every", "difference", "interval", "p (Holm)"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in paired:
        if row["metric"] != metric or against not in (row["a"], row["b"]):
            continue
        sign = 1 if row["b"] == against else -1
        other = row["a"] if sign == 1 else row["b"]
        low, high = sorted((sign * row["low"], sign * row["high"]))
        table.add_row(
            other,
            str(row["size"]),
            str(row["every"]),
            f"{sign * row['diff']:+.4f}",
            f"{low:+.4f} to {high:+.4f}",
            f"{row['p']:.4f}",
        )
    if table.row_count:
        Console().print(table)


def print_kept(rows: Sequence[Mapping[str, Any]]) -> None:
    """Where a policy was trained and a rival of it did better, and so chose."""
    for row in rows:
        if row["kept_policy"] != row["policy"]:
            when = "" if row["every"] == 1 else f" every {row['every']}"
            place = f"{row['policy']} at {row['size']}{when}, seed {row['seed']}"
            print(
                f"{place}: {row['kept_policy']} chose, better on validation than what was learned"
            )


def print_saved(about: Mapping[str, Any], metrics: Sequence[str]) -> None:
    """The most that policies save against reservoir at equal quality, and the paper's claim."""
    for row in about["saved"]:
        if row["metric"] in metrics:
            best = "" if row["bound"] == "below" else "at best "
            print(f"{row['metric']}: {best}{row['sentence']}")
    print(f"the paper: {about['paper']['claim']}")


def print_gains(gains: Sequence[Mapping[str, Any]], metric: str) -> None:
    """How much better predictions are with a sketch than without."""
    for row in gains:
        if row["metric"] == metric and row["gain"] is not None:
            text = f"{metric}: {row['policy']} at {row['size']} gains {100 * row['gain']:+.1f} %"
            print(f"{text} over no sketch")


def print_handover(result: Result, title: str, out: Path) -> None:
    """What a study of transfer or of sessions found."""
    metrics = ("recall@20", "mrr@20")
    for metric in metrics:
        print_summary(result.summary, metric, f"test {metric} on {title}")
    print_gains(result.about.get("gains", ()), metrics[0])
    print_kept(result.rows)
    print_saved(result.about, metrics)
    print(f"all rows, ratios and runs are in {out}; look at {out}/figure.png")


ENTRIES = {
    "preserved": "non-zero: sign preserved",
    "negated": "non-zero: sign negated",
    "zeroed": "non-zero: zeroed",
    "made_nonzero": "zero: made non-zero",
}
"""What becomes of the entries of a true gradient, for people."""


def print_gradients(found: Mapping[str, Any]) -> None:
    """What gradients.json says: shares of entries by method, ours beside the paper's."""
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
    for key, label in (("cosine", "cosine to it"), ("length", "length relative to it")):
        table.add_row(label, f"{ours['dips'][key]:.2f}", "", f"{ours['dips@1'][key]:.2f}", "")
    Console().print(table)
    print(f"zero: at most {found['tolerance']:g} of the largest entry of the same gradient")


def print_stages(stages: Mapping[str, Mapping[str, Any]]) -> None:
    """What became of each stage, and why where it could not run."""
    table = Table()
    for name in ("stage", "state", "time", ""):
        table.add_column(name, justify="right" if name == "time" else "left")
    for name, told in stages.items():
        table.add_row(name, told["state"], seconds(told["seconds"]), escape(told["why"]))
    Console().print(table)


def print_sketch(found: Mapping[str, Any]) -> None:
    """What is remembered of one user, oldest first."""
    print(f"{found['user']}: {found['seen']} interactions, policy version {found['policy']}")
    table = Table()
    for name in ("position", "item", "rating", "time", "repeats", ""):
        table.add_column(name, justify="left" if name in ("item", "") else "right")
    for part, note in (("entries", ""), ("waiting", "waits for a refresh")):
        for row in found[part]:
            values = (row["position"], row["item"], row["rating"], row["time"], row["repeats"])
            table.add_row(*(escape(str(value)) for value in values), note)
    Console().print(table)
