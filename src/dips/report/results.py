"""Results as directories hold them, read into plain rows: comparisons, experiments, runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dips.errors import RunError
from dips.evaluation.split_deviation import within_splits

WHOLE = {"size", "every", "seed", "n"}
WORDS = {"policy", "kept_policy", "metric", "a", "b"}
EXPERIMENTS = ("transfer", "session")
DEEPEST = 2
"""How far down results are looked for."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A trained run."""

    name: str
    config: Row
    metrics: Row
    history: list[Row]
    gradients: Row | None = None
    origin: Row = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """What `dips compare` leaves: rows, means, pairs, and the runs where they are kept."""

    name: str
    data: str
    rows: list[Row]
    summary: list[Row]
    paired: list[Row]
    runs: list[Run]
    origin: Row


@dataclass(frozen=True)
class Experiment:
    """What `dips transfer` and `dips session` leave: policies by size, and what it is about."""

    kind: str
    name: str
    about: Row
    rows: list[Row]
    summary: list[Row]
    paired: list[Row]
    origin: Row


@dataclass(frozen=True)
class Results:
    """Everything that was found, in the order in which it was named."""

    comparisons: list[Comparison] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    papers: list[Row] = field(default_factory=list)
    """What `dips paper` says of its stages."""


def read_results(places: Sequence[Path]) -> Results:
    """Read directories of results, or directories of these."""
    if not places:
        raise RunError("there is nothing to report: name directories that dips wrote")
    found = Results()
    for place in places:
        if not place.is_dir():
            raise RunError(f"{place}: there is no such directory; give one that dips wrote")
        before = len(found.comparisons) + len(found.experiments) + len(found.runs)
        _add(found, place, DEEPEST)
        if len(found.comparisons) + len(found.experiments) + len(found.runs) == before:
            raise RunError(
                f"{place}: there are no results in it; give what 'dips compare', 'transfer' or "
                "'session' wrote to --out, or a finished run"
            )
    return found


def _add(found: Results, place: Path, depth: int) -> None:
    """What a directory is, or what lies below it."""
    experiment = next((kind for kind in EXPERIMENTS if (place / f"{kind}.json").exists()), None)
    if experiment is not None:
        found.experiments.append(_experiment(place, experiment))
    elif (place / "summary.csv").exists():
        found.comparisons.append(_comparison(place))
    elif (place / "metrics.json").exists():
        found.runs.append(_run(place))
    elif depth:
        if told := _optional(place / "paper.json"):
            found.papers.append(told)
        for below in sorted((path for path in place.iterdir() if path.is_dir()), key=_turn):
            _add(found, below, depth - 1)


def _turn(place: Path) -> tuple[bool, int, str]:
    """Directories in order of their names; those of experiments, as dips names them, come last."""
    named = place.name in EXPERIMENTS
    return named, EXPERIMENTS.index(place.name) if named else 0, place.name


def _comparison(place: Path) -> Comparison:
    runs = [_run(path) for path in sorted((place / "runs").glob("*")) if _finished(path)]
    origin = _optional(place / "origin.json")
    data = str(runs[0].metrics["data"] if runs else origin.get("data", place.resolve().name))
    rows = _table(place / "rows.csv")
    summary = _with_spread(_table(place / "summary.csv"), rows, "test_")
    paired = _table(place / "paired.csv") if (place / "paired.csv").exists() else []
    return Comparison(place.resolve().name, data, rows, summary, paired, runs, origin)


def _experiment(place: Path, kind: str) -> Experiment:
    about, rows = _json(place / f"{kind}.json"), _table(place / "rows.csv")
    summary = _with_spread(_table(place / "summary.csv"), rows, "")
    paired = _table(place / "paired.csv") if (place / "paired.csv").exists() else []
    origin = {**about, **_optional(place / "origin.json")}
    return Experiment(kind, place.resolve().name, about, rows, summary, paired, origin)


def _with_spread(summary: list[Row], rows: list[Row], prefix: str) -> list[Row]:
    """Means with what is left of their deviation when splits' common ups and downs are gone."""
    spread: dict[tuple[str, str, int, int], float] = {}
    for metric in {row["metric"] for row in summary}:
        values: dict[tuple[str, int, int], dict[int, float]] = {}
        for row in rows:
            cell = (row["policy"], row["size"], row.get("every", 1))
            values.setdefault(cell, {})[row["seed"]] = row[prefix + metric]
        spread |= {(metric, *cell): own for cell, own in within_splits(values).items()}
    return [
        {
            **row,
            "spread": spread.get(
                (row["metric"], row["policy"], row["size"], row["every"]), row["std"]
            ),
        }
        for row in summary
    ]


def _run(place: Path) -> Run:
    history = []
    if (place / "log.jsonl").exists():
        lines = (place / "log.jsonl").read_text().splitlines()
        history = [_parsed(line, place / "log.jsonl") for line in lines]
    return Run(
        place.resolve().name,
        _json(place / "config.json"),
        _json(place / "metrics.json"),
        history,
        _optional(place / "gradients.json") or None,
        _optional(place / "origin.json"),
    )


def _finished(place: Path) -> bool:
    return (place / "metrics.json").exists()


def _optional(path: Path) -> Row:
    return _json(path) if path.exists() else {}


def _json(path: Path) -> Row:
    try:
        return _parsed(path.read_text(), path)
    except OSError:
        raise RunError(f"{path.parent} is not whole: {path.name} is missing") from None


def _parsed(text: str, path: Path) -> Row:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}; make it again") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: there is no JSON object in it; make it again")
    return value


def _table(path: Path) -> list[Row]:
    """A CSV with numbers where numbers are."""
    try:
        with path.open(newline="") as file:
            return list(_rows(csv.DictReader(file), path))
    except OSError:
        raise RunError(f"{path.parent} is not whole: {path.name} is missing") from None


def _rows(reader: csv.DictReader[str], path: Path) -> Iterator[Row]:
    for row in reader:
        yield {name: _value(name, text, path, reader.line_num) for name, text in row.items()}


def _value(name: str, text: str | None, path: Path, line: int) -> Any:
    if name in WORDS:
        return text or ""
    try:
        return int(text or "") if name in WHOLE else float(text or "")
    except ValueError:
        if name in WHOLE or text is None:
            raise RunError(
                f"{path}, line {line}: {name} is '{text}', not a number; make it again"
            ) from None
        return text
