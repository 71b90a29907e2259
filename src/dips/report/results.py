"""Read result directories into plain rows: comparisons, experiments, runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dips.errors import RunError
from dips.evaluation.comparison import BEST_RULE, fold_of
from dips.evaluation.split_deviation import within_splits

INTEGER_COLUMNS = {"size", "every", "seed", "fold", "repeat", "n"}
LIST_COLUMNS = {"folds"}
TEXT_COLUMNS = {"policy", "kept_policy", "metric", "a", "b"}
EXPERIMENTS = ("transfer", "session")
MAX_DEPTH = 2
"""Levels of subdirectories that are searched."""
Row = dict[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """The files of a run directory."""

    name: str
    config: Row
    metrics: Row
    history: list[Row]
    gradients: Row | None = None
    origin: Row = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """The files of `dips compare`: rows, means, paired tests, and runs if they were kept."""

    name: str
    data: str
    rows: list[Row]
    summary: list[Row]
    paired: list[Row]
    runs: list[RunRecord]
    origin: Row
    best_rules: list[Row] = field(default_factory=list)
    """By size, period and fold: the rule that is best on validation."""


@dataclass(frozen=True)
class Experiment:
    """The files of `dips transfer` or `dips session`: rows, means, paired tests, description."""

    kind: str
    name: str
    about: Row
    rows: list[Row]
    summary: list[Row]
    paired: list[Row]
    origin: Row


@dataclass(frozen=True)
class Results:
    """All results, in the order of the directories."""

    comparisons: list[Comparison] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)
    papers: list[Row] = field(default_factory=list)
    """Contents of paper.json files: the stages of `dips paper`."""


def read_results(directories: Sequence[Path]) -> Results:
    """Read result directories, or directories that contain them.

    Args:
        directories: What `dips compare`, `transfer`, `session`, `paper` or `train` wrote.

    Raises:
        RunError: If a directory is missing, has no results, or holds a damaged file.
    """
    if not directories:
        raise RunError("there is nothing to report: name directories that dips wrote")
    found = Results()
    for place in directories:
        if not place.is_dir():
            raise RunError(f"{place}: there is no such directory; give one that dips wrote")
        before = len(found.comparisons) + len(found.experiments) + len(found.runs)
        _add(found, place, MAX_DEPTH)
        if len(found.comparisons) + len(found.experiments) + len(found.runs) == before:
            raise RunError(
                f"{place}: there are no results in it; give what 'dips compare', 'transfer' or "
                "'session' wrote to --out, or a finished run"
            )
    return found


def _add(found: Results, place: Path, depth: int) -> None:
    """Add the results of a directory, or of its subdirectories."""
    experiment = next((kind for kind in EXPERIMENTS if (place / f"{kind}.json").exists()), None)
    if experiment is not None:
        found.experiments.append(_experiment(place, experiment))
    elif (place / "summary.csv").exists():
        found.comparisons.append(_comparison(place))
    elif (place / "metrics.json").exists():
        found.runs.append(_run(place))
    elif depth:
        if stages := _optional(place / "paper.json"):
            found.papers.append(stages)
        subdirectories = [path for path in place.iterdir() if path.is_dir()]
        for below in sorted(subdirectories, key=_directory_order):
            _add(found, below, depth - 1)


def _directory_order(place: Path) -> tuple[bool, int, str]:
    """Sort by name; the directories `transfer` and `session` come last."""
    named = place.name in EXPERIMENTS
    return named, EXPERIMENTS.index(place.name) if named else 0, place.name


def _comparison(place: Path) -> Comparison:
    runs = [_run(path) for path in sorted((place / "runs").glob("*")) if _finished(path)]
    origin = _optional(place / "origin.json")
    data = str(runs[0].metrics["data"] if runs else origin.get("data", place.resolve().name))
    rows = _table(place / "rows.csv")
    paired = _table(place / "paired.csv") if (place / "paired.csv").exists() else []
    rules = _table(place / "best_rules.csv") if (place / "best_rules.csv").exists() else []
    composed = [*rows, *_best_rule_rows(rows, rules)]
    summary = _with_spread(_table(place / "summary.csv"), composed, "test_")
    return Comparison(place.resolve().name, data, rows, summary, paired, runs, origin, rules)


def _best_rule_rows(rows: list[Row], rules: list[Row]) -> list[Row]:
    """Return the rows of the rules that were chosen, as rows of `best-rule`."""
    chosen = {(row["size"], row["every"], row["fold"], row["policy"]) for row in rules}
    return [
        {**row, "policy": BEST_RULE}
        for row in rows
        if (row["size"], row["every"], fold_of(row), row["policy"]) in chosen
    ]


def _experiment(place: Path, kind: str) -> Experiment:
    about, rows = _json(place / f"{kind}.json"), _table(place / "rows.csv")
    summary = _with_spread(_table(place / "summary.csv"), rows, "")
    paired = _table(place / "paired.csv") if (place / "paired.csv").exists() else []
    origin = {**about, **_optional(place / "origin.json")}
    return Experiment(kind, place.resolve().name, about, rows, summary, paired, origin)


def _with_spread(summary: list[Row], rows: list[Row], prefix: str) -> list[Row]:
    """Add `spread`: the deviation over folds after their common shift is removed.

    Repeats of one fold are averaged first.
    """
    spread: dict[tuple[str, str, int, int], float] = {}
    for metric in {row["metric"] for row in summary}:
        values: dict[tuple[str, int, int], dict[int, list[float]]] = {}
        for row in rows:
            cell = (row["policy"], row["size"], row.get("every", 1))
            folds = values.setdefault(cell, {})
            folds.setdefault(fold_of(row), []).append(row[prefix + metric])
        means = {
            cell: {fold: sum(own) / len(own) for fold, own in folds.items()}
            for cell, folds in values.items()
        }
        spread |= {(metric, *cell): own for cell, own in within_splits(means).items()}
    return [
        {
            **row,
            "spread": spread.get(
                (row["metric"], row["policy"], row["size"], row["every"]), row["std"]
            ),
        }
        for row in summary
    ]


def _run(place: Path) -> RunRecord:
    history = []
    if (place / "log.jsonl").exists():
        lines = (place / "log.jsonl").read_text().splitlines()
        history = [_parsed(line, place / "log.jsonl") for line in lines]
    return RunRecord(
        place.resolve().name,
        _settings(place),
        _json(place / "metrics.json"),
        history,
        _optional(place / "gradients.json") or None,
        _optional(place / "origin.json"),
    )


def _settings(place: Path) -> Row:
    """Return the resolved settings of a run, and the source of its data."""
    document = _json(place / "config.json")
    if "resolved" not in document:
        raise RunError(f"{place} was written by dips 0.1: train the run again")
    return {**document["resolved"], "data": document["data"]}


def _finished(place: Path) -> bool:
    return (place / "metrics.json").exists()


def _optional(path: Path) -> Row:
    return _json(path) if path.exists() else {}


def _json(path: Path) -> Row:
    try:
        return _parsed(path.read_text(), path)
    except OSError:
        raise RunError(f"{path.parent} is incomplete: {path.name} is missing") from None


def _parsed(text: str, path: Path) -> Row:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}; make it again") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: there is no JSON object in it; make it again")
    return value


def _table(path: Path) -> list[Row]:
    """Return the rows of a CSV file with numbers converted."""
    try:
        with path.open(newline="") as file:
            return list(_rows(csv.DictReader(file), path))
    except OSError:
        raise RunError(f"{path.parent} is incomplete: {path.name} is missing") from None


def _rows(reader: csv.DictReader[str], path: Path) -> Iterator[Row]:
    for row in reader:
        yield {name: _value(name, text, path, reader.line_num) for name, text in row.items()}


def _value(name: str, text: str | None, path: Path, line: int) -> Any:
    if name in TEXT_COLUMNS:
        return text or ""
    if name in LIST_COLUMNS:
        return _numbers(name, text or "", path, line)
    try:
        return int(text or "") if name in INTEGER_COLUMNS else float(text or "")
    except ValueError:
        if name in INTEGER_COLUMNS or text is None:
            raise RunError(
                f"{path}, line {line}: {name} is '{text}', not a number; make it again"
            ) from None
        return text


def _numbers(name: str, text: str, path: Path, line: int) -> list[float]:
    """Return the numbers of a cell such as [0.1, -0.2]."""
    try:
        return [float(number) for number in json.loads(text)]
    except (ValueError, TypeError):
        raise RunError(
            f"{path}, line {line}: {name} is '{text}', not a list of numbers; make it again"
        ) from None
