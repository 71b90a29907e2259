"""A table of runs: plan the cells, tune each policy alike, train what is missing, test the pairs.

Resumes where it stopped: a run that is in the results directory is not trained again.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dips.data.interactions import Interactions
from dips.errors import ConfigError, RunError
from dips.evaluation.comparison import Cell, UserSums, compare_pairs, summarise
from dips.evaluation.metrics import LOWER_IS_BETTER, headline
from dips.evaluation.tuning import trials
from dips.evaluation.verdict import of_table
from dips.policy.registry import make_policy
from dips.studies.checks import check, split
from dips.studies.result import Moment, RunResult
from dips.studies.run import run
from dips.studies.run_directory import (
    differing,
    is_finished,
    read_config,
    read_json,
    read_metrics,
    read_users,
    write_csv,
    write_json,
    write_run,
)
from dips.training.config import TrainConfig

TOLD = ("kept_policy", "valid", "test")
"""What a row of the table has of a run's metrics."""


@dataclass(frozen=True)
class Update:
    """How far a study is: so many things done, of so many in all."""

    stage: str
    done: int
    total: int
    interactions_per_second: float = 0.0
    things: str = "epochs of runs"
    """What is counted."""


@dataclass(frozen=True)
class Table:
    """The result: one row per run, means over seeds, and paired differences."""

    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    paired: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """What `compare --json` prints."""
        tables = {"rows": self.rows, "summary": self.summary, "paired": self.paired}
        return {**tables, "verdict": self.verdict()}

    def verdict(self) -> str:
        """What all the numbers come to, in one line; empty where there is one policy."""
        return of_table(self.summary, self.paired, self.summary[0]["metric"], self.rows)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a study compares."""

    policies: Sequence[str]
    sizes: Sequence[int]
    every: Sequence[int]
    seeds: Sequence[int]
    settings: Callable[[str], TrainConfig]
    """The settings of a policy, whatever its size and seed."""
    tune: int = 0
    """Trials for each cell; 0 takes the settings as they are."""
    tune_once: bool = False
    """Tune each policy at the middle size and the first period only, and carry it over."""

    def cells(self) -> list[Cell]:
        """All places of the table. `all` has no size: it stands at the largest."""
        found = []
        largest = max(self.sizes, default=1)
        for policy in self.policies:
            make_policy(policy, size=largest)  # refuses unknown ones, before anything is written
            self.settings(policy)
        for policy, size, every in itertools.product(self.policies, self.sizes, self.every):
            name, _, newest = policy.partition(":")
            if name in ("mix", "last-top") and float(newest) >= size:
                continue
            if policy == "all" and size != largest:
                continue
            found.append(Cell(policy, size, every))
        if not found or not self.seeds:
            raise ConfigError("there is nothing to compare: give policies, sizes and seeds")
        return found

    def tuned_at(self, cell: Cell) -> Cell:
        """The cell whose tuning this one uses."""
        if not self.tune_once:
            return cell
        same = sorted({c.size for c in self.cells() if c.policy == cell.policy})
        return Cell(cell.policy, same[len(same) // 2], self.every[0])

    def config(self, cell: Cell, seed: int, tuned: dict[str, Any]) -> TrainConfig:
        """The settings of one run."""
        fixed = {"policy": cell.policy, "size": cell.size, "every": cell.every, "seed": seed}
        return self.settings(cell.policy).but(**{**tuned, **fixed})

    def base(self) -> TrainConfig:
        """Settings of the first policy: what all of them share can be read from it."""
        return self.settings(self.policies[0])


Watch = Callable[[Update], None]


class Study:
    """Carries out a plan over one dataset, keeping everything in a results directory."""

    def __init__(
        self, data: Interactions, plan: Plan, out: Path, *, source: str, watch: Watch | None = None
    ) -> None:
        self.data, self.plan, self.out, self.source = data, plan, out, source
        self.watch = watch or (lambda update: None)

    def result(self) -> Table:
        """Tune, train what is missing, and put the table together."""
        refuse_other(self.out, "comparison")
        return self._table(self.runs())

    def runs(self) -> dict[tuple[Cell, int], Path]:
        """Tune, and train what is missing: where the run of every cell and seed is."""
        cells = self.plan.cells()
        self._begin([self.plan.config(cell, self.plan.seeds[0], {}) for cell in cells])
        tuned = self._tune(cells)
        wanted = {
            (cell, seed): self.plan.config(cell, seed, tuned[self.plan.tuned_at(cell)])
            for cell in cells
            for seed in self.plan.seeds
        }
        missing = [key for key, config in wanted.items() if not self._is_there(key, config)]

        diverged: list[RunResult] = []

        def keep(index: int, outcome: RunResult) -> None:
            if outcome.error:
                diverged.append(outcome)
            else:
                write_run(outcome, self._place(missing[index]), source=self.source, curve=False)

        self._train("training", [wanted[key] for key in missing], keep, test=True)
        for outcome in diverged:  # the others are kept first
            outcome.raise_if_diverged()
        return {key: self._place(key) for key in wanted}

    def _begin(self, configs: Sequence[TrainConfig]) -> None:
        """Refuse what cannot work before anything is written."""
        if self.plan.tune < 0:
            raise ConfigError(f"tune is {self.plan.tune}: give the number of trials, or 0 for none")
        if self.plan.base().max_seconds:
            raise ConfigError("max_seconds: a comparison trains runs side by side; limit epochs")
        for config in {(config.policy, config.every): config for config in configs}.values():
            check(self.data, config)
        make_room(self.out, "runs")

    def _tune(self, cells: Sequence[Cell]) -> dict[Cell, dict[str, Any]]:
        """The best of the same trials for every cell, by validation on the first seed."""
        places = list(dict.fromkeys(self.plan.tuned_at(cell) for cell in cells))
        if not self.plan.tune:
            return {cell: {} for cell in places}
        path = self.out / "tuning.json"
        settings = {**self.plan.base().to_dict(), "seed": self.plan.seeds[0], "data": self.source}
        found = read_json(path) if path.exists() else {"settings": settings, "trials": {}}
        if other := differing(found["settings"], settings):
            raise RunError(
                f"{self.out} was tuned with another {other}: give --out another directory, or "
                f"remove {path.name}"
            )
        lines = found["trials"]
        implicit = self.plan.base().implicit(self.data.explicit)
        points = trials(self.plan.tune, "implicit" if implicit else "explicit")
        missing = [
            (cell, point)
            for cell in places
            for point in points
            if _trial_name(cell, point) not in lines
        ]

        def keep(index: int, outcome: RunResult) -> None:
            cell, point = missing[index]
            lines[_trial_name(cell, point)] = _worth(outcome)
            write_json(found, path)

        configs = [self.plan.config(cell, self.plan.seeds[0], point) for cell, point in missing]
        self._train("tuning", configs, keep, test=False)
        best = {}
        for cell in places:
            scores = [lines[_trial_name(cell, point)] for point in points]
            best[cell] = points[scores.index(min(scores))]
        return best

    def _train(
        self,
        stage: str,
        configs: Sequence[TrainConfig],
        keep: Callable[[int, RunResult], None],
        *,
        test: bool,
    ) -> None:
        total = sum(config.epochs for config in configs)
        finished = done = 0

        def follow(moment: Moment) -> None:
            nonlocal done
            if not moment.baseline:  # rivals are extra: nobody waits for them alone
                done = finished + moment.runs * moment.epoch
            self.watch(Update(stage, done, total, moment.interactions_per_second))

        def store(index: int, outcome: RunResult) -> None:
            nonlocal finished
            finished += configs[index].epochs
            keep(index, outcome)

        if configs:
            jobs = [(split(self.data, config), config) for config in configs]
            stacks = self.out / "stacks"
            run(jobs, test=test, watch=follow, done=store, directory=stacks, resume=True)
            shutil.rmtree(stacks, ignore_errors=True)

    def _place(self, key: tuple[Cell, int]) -> Path:
        return self.out / "runs" / name_of(*key)

    def _is_there(self, key: tuple[Cell, int], config: TrainConfig) -> bool:
        return is_there(self._place(key), {**config.to_dict(), "data": self.source})

    def _table(self, places: dict[tuple[Cell, int], Path]) -> Table:
        rows: list[dict[str, Any]] = []
        users: dict[Cell, list[UserSums]] = {}
        for (cell, seed), place in places.items():
            metrics = read_metrics(place)
            row = {"policy": cell.policy, "size": cell.size, "every": cell.every, "seed": seed}
            rows.append({**row, **{name: metrics[name] for name in TOLD}})
            users.setdefault(cell, []).append(read_users(place))
        table = Table(rows, summarise(rows), compare_pairs(users))
        self._write(table)
        return table

    def _write(self, table: Table) -> None:
        flat = [
            {
                **{name: row[name] for name in ("policy", "size", "every", "seed", "kept_policy")},
                **{f"valid_{name}": value for name, value in row["valid"].items()},
                **{f"test_{name}": value for name, value in row["test"].items()},
            }
            for row in table.rows
        ]
        for name, lines in (("rows", flat), ("summary", table.summary), ("paired", table.paired)):
            write_rows(lines, self.out / f"{name}.csv")


def refuse_other(out: Path, kind: str) -> None:
    """Refuse a results directory that a study of another kind fills: tables would be lost."""
    found = [name for name in ("transfer", "session") if (out / f"{name}.json").exists()]
    if not found and (out / "cells").exists():  # it is not finished: one of both
        found = ["transfer", "session"]
    if not found and (out / "runs").exists():
        found = ["comparison"]
    if found and kind not in found:
        raise RunError(
            f"{out} holds results of another kind ({' or '.join(found)}): give --out another "
            "directory"
        )


def make_room(out: Path, name: str) -> None:
    """A directory in a results directory, or a sentence."""
    try:
        (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out} cannot be written ({error}): choose another") from None


def name_of(cell: Cell, seed: int) -> str:
    """What the directory of a cell's run is called."""
    policy = cell.policy.replace(":", "-").replace("/", "-")
    return f"{policy}-k{cell.size}-t{cell.every}-s{seed}"


def is_there(place: Path, wanted: dict[str, Any]) -> bool:
    """Whether there is a finished run with these settings; one with others is refused."""
    if not is_finished(place):
        return False
    if other := differing(read_config(place), wanted):
        raise RunError(
            f"{place} was made with another {other}: give --out another directory, or remove "
            "that run"
        )
    return True


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows of the same keys as a table."""
    header = list(rows[0]) if rows else ["empty"]
    write_csv(header, ([row[column] for column in header] for row in rows), path)


def _trial_name(cell: Cell, point: dict[str, Any]) -> str:
    return json.dumps([cell.policy, cell.size, cell.every, point], sort_keys=True)


def _worth(outcome: RunResult) -> float:
    """The validation of a trial as a number to minimise; a run that diverged is worst."""
    if outcome.error:
        return 1e9
    name = headline(outcome.valid)
    return outcome.valid[name] if name in LOWER_IS_BETTER else -outcome.valid[name]
