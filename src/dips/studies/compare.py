"""Compare policies over sizes, periods and splits, with the same tuning for each policy.

A comparison resumes where it stopped: runs in the results directory are not trained again.
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
from dips.evaluation.metrics import LOWER_IS_BETTER, primary_metric
from dips.evaluation.tuning import trials
from dips.evaluation.verdict import comparison_verdict
from dips.policy.registry import make_policy
from dips.studies.checks import check, resolved, split
from dips.studies.progress import EpochReport, StudyCallback, StudyProgress
from dips.studies.result import RunResult
from dips.studies.run import train_runs
from dips.studies.run_directory import (
    changed_settings,
    is_finished,
    read_config,
    read_json,
    read_metrics,
    read_user_sums,
    write_csv,
    write_json,
    write_run,
)
from dips.training.config import TrainConfig

ROW_METRICS = ("kept_policy", "valid", "test")
"""Entries of a run's metrics.json that a row of the table holds."""


@dataclass(frozen=True)
class ComparisonTable:
    """Result of a comparison.

    Attributes:
        rows: One per run: policy, size, every, seed, kept_policy, valid and test metrics.
        summary: One per cell and metric: mean and standard deviation over seeds.
        paired: One per pair of policies, cell and metric: difference, 95 % interval, p-value.
    """

    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    paired: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return what `dips compare --json` prints."""
        tables = {"rows": self.rows, "summary": self.summary, "paired": self.paired}
        return {**tables, "verdict": self.verdict()}

    def verdict(self) -> str:
        """Return one sentence that compares the policies; empty for a single policy."""
        return comparison_verdict(self.summary, self.paired, self.summary[0]["metric"], self.rows)


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """The cells and seeds of a comparison, and the settings of its runs."""

    policies: Sequence[str]
    sizes: Sequence[int]
    every: Sequence[int]
    seeds: Sequence[int]
    settings: Callable[[str], TrainConfig]
    """From a policy's name to its settings; size, period and seed are set per cell."""
    tune: int = 0
    """Number of tuning trials for each cell; 0: no tuning."""
    tune_once: bool = False
    """Tune each policy at its middle size and the first period only; all its cells use the best."""

    def cells(self) -> list[Cell]:
        """Return all cells. The policy `all` has no size: it has one cell, at the largest.

        Raises:
            ConfigError: If a policy is unknown, or if there is no cell or no seed.
        """
        found = []
        largest = max(self.sizes, default=1)
        for policy in self.policies:
            make_policy(
                policy, size=largest
            )  # raises for unknown policies, before anything is written
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
        """Return the cell whose tuned settings this cell uses."""
        if not self.tune_once:
            return cell
        same = sorted({c.size for c in self.cells() if c.policy == cell.policy})
        return Cell(cell.policy, same[len(same) // 2], self.every[0])

    def config(self, cell: Cell, seed: int, tuned: dict[str, Any]) -> TrainConfig:
        """Return the settings of one run."""
        fixed = {"policy": cell.policy, "size": cell.size, "every": cell.every, "seed": seed}
        return self.settings(cell.policy).but(**{**tuned, **fixed})

    def base(self) -> TrainConfig:
        """Return the settings of the first policy, for what all policies share."""
        return self.settings(self.policies[0])


class Comparison:
    """Trains the runs of a plan on one data set and writes the results to a directory.

    Args:
        data: All users; each seed gives its own split.
        plan: What to compare.
        out: Results directory.
        source: Name of the data as the user gave it, for config.json.
        on_progress: Called after each epoch.
    """

    def __init__(
        self,
        data: Interactions,
        plan: ComparisonPlan,
        out: Path,
        *,
        source: str,
        on_progress: StudyCallback | None = None,
    ) -> None:
        self.data, self.plan, self.out, self.source = data, plan, out, source
        self.on_progress = on_progress or (lambda progress: None)

    def run(self) -> ComparisonTable:
        """Tune, train missing runs, and write and return the tables.

        Raises:
            RunError: If `out` holds results of another kind or with other settings.
            TrainingDiverged: If a run diverged; the other runs are written first.
        """
        check_kind(self.out, "comparison")
        return self._table(self.train())

    def train(self) -> dict[tuple[Cell, int], Path]:
        """Tune, train missing runs, and return the run directory of every cell and seed."""
        cells = self.plan.cells()
        self._begin([self.plan.config(cell, self.plan.seeds[0], {}) for cell in cells])
        tuned = self._tune(cells)
        wanted = {
            (cell, seed): self.plan.config(cell, seed, tuned[self.plan.tuned_at(cell)])
            for cell in cells
            for seed in self.plan.seeds
        }
        missing = [key for key, config in wanted.items() if not self._has_run(key, config)]

        diverged: list[RunResult] = []

        def keep(index: int, result: RunResult) -> None:
            if result.error:
                diverged.append(result)
            else:
                write_run(result, self._place(missing[index]), source=self.source, curve=False)

        self._train("training", [wanted[key] for key in missing], keep, test=True)
        for result in diverged:  # after the other runs were written
            result.raise_if_diverged()
        return {key: self._place(key) for key in wanted}

    def _begin(self, configs: Sequence[TrainConfig]) -> None:
        """Check all settings before anything is written."""
        if self.plan.tune < 0:
            raise ConfigError(f"tune is {self.plan.tune}: give the number of trials, or 0 for none")
        if self.plan.base().training.max_seconds:
            raise ConfigError("max_seconds: stacked runs share their time; limit --epochs instead")
        for config in {
            (config.sketch.policy, config.sketch.every): config for config in configs
        }.values():
            check(self.data, config)
        make_subdirectory(self.out, "runs")

    def _tune(self, cells: Sequence[Cell]) -> dict[Cell, dict[str, Any]]:
        """Return the best settings of each cell on the validation users of the first seed."""
        places = list(dict.fromkeys(self.plan.tuned_at(cell) for cell in cells))
        if not self.plan.tune:
            return {cell: {} for cell in places}
        path = self.out / "tuning.json"
        settings = {**self.plan.base().to_dict(), "seed": self.plan.seeds[0], "data": self.source}
        found = read_json(path) if path.exists() else {"settings": settings, "trials": {}}
        if other := changed_settings(found["settings"], settings):
            raise RunError(
                f"{self.out} was tuned with other settings ({other}): give --out another "
                f"directory, or remove {path.name}"
            )
        losses = found["trials"]
        implicit = resolved(self.data, self.plan.base()).model.implicit
        points = trials(self.plan.tune, "implicit" if implicit else "explicit")
        missing = [
            (cell, point)
            for cell in places
            for point in points
            if _trial_name(cell, point) not in losses
        ]

        def keep(index: int, result: RunResult) -> None:
            cell, point = missing[index]
            losses[_trial_name(cell, point)] = _validation_loss(result)
            write_json(found, path)

        configs = [self.plan.config(cell, self.plan.seeds[0], point) for cell, point in missing]
        self._train("tuning", configs, keep, test=False)
        best = {}
        for cell in places:
            found_losses = [losses[_trial_name(cell, point)] for point in points]
            best[cell] = points[found_losses.index(min(found_losses))]
        return best

    def _train(
        self,
        phase: str,
        configs: Sequence[TrainConfig],
        keep: Callable[[int, RunResult], None],
        *,
        test: bool,
    ) -> None:
        epochs = [resolved(self.data, config).training.epochs for config in configs]
        total = sum(epochs)
        finished = done = 0

        def report(epoch: EpochReport) -> None:
            nonlocal done
            if not epoch.is_baseline:  # `total` counts the epochs of the runs themselves
                done = finished + epoch.runs * epoch.epoch
            self.on_progress(StudyProgress(phase, done, total, epoch.interactions_per_second))

        def store(index: int, result: RunResult) -> None:
            nonlocal finished
            finished += epochs[index]
            keep(index, result)

        if configs:
            jobs = [(split(self.data, config), config) for config in configs]
            stacks = self.out / "stacks"
            train_runs(
                jobs, test=test, on_epoch=report, on_result=store, directory=stacks, resume=True
            )
            shutil.rmtree(stacks, ignore_errors=True)

    def _place(self, key: tuple[Cell, int]) -> Path:
        return self.out / "runs" / run_name(*key)

    def _has_run(self, key: tuple[Cell, int], config: TrainConfig) -> bool:
        return has_run(self._place(key), {**config.to_dict(), "data": self.source})

    def _table(self, places: dict[tuple[Cell, int], Path]) -> ComparisonTable:
        rows: list[dict[str, Any]] = []
        users: dict[Cell, list[UserSums]] = {}
        for (cell, seed), place in places.items():
            metrics = read_metrics(place)
            row = {"policy": cell.policy, "size": cell.size, "every": cell.every, "seed": seed}
            rows.append({**row, **{name: metrics[name] for name in ROW_METRICS}})
            users.setdefault(cell, []).append(read_user_sums(place))
        table = ComparisonTable(rows, summarise(rows), compare_pairs(users))
        self._write(table)
        return table

    def _write(self, table: ComparisonTable) -> None:
        flat = [
            {
                **{name: row[name] for name in ("policy", "size", "every", "seed", "kept_policy")},
                **{f"valid_{name}": value for name, value in row["valid"].items()},
                **{f"test_{name}": value for name, value in row["test"].items()},
            }
            for row in table.rows
        ]
        for name, lines in (("rows", flat), ("summary", table.summary), ("paired", table.paired)):
            write_table(lines, self.out / f"{name}.csv")


def check_kind(out: Path, kind: str) -> None:
    """Check that a results directory is free or holds results of this kind of study.

    Raises:
        RunError: If it holds results of another kind: their tables would be overwritten.
    """
    found = [name for name in ("transfer", "session") if (out / f"{name}.json").exists()]
    if not found and (out / "cells").exists():  # unfinished: either of both
        found = ["transfer", "session"]
    if not found and (out / "runs").exists():
        found = ["comparison"]
    if found and kind not in found:
        raise RunError(
            f"{out} holds results of another kind ({' or '.join(found)}): give --out another "
            "directory"
        )


def make_subdirectory(out: Path, name: str) -> None:
    """Create a subdirectory of a results directory.

    Raises:
        RunError: If it cannot be created.
    """
    try:
        (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out} cannot be written ({error}): give --out another directory") from None


def run_name(cell: Cell, seed: int) -> str:
    """Return the name of the directory of a cell's run."""
    policy = cell.policy.replace(":", "-").replace("/", "-")
    return f"{policy}-k{cell.size}-t{cell.every}-s{seed}"


def has_run(place: Path, wanted: dict[str, Any]) -> bool:
    """Return whether a directory holds a finished run with these settings.

    Raises:
        RunError: If it holds a finished run with other settings.
    """
    if not is_finished(place):
        return False
    if other := changed_settings(read_config(place), wanted):
        raise RunError(
            f"{place} was made with other settings ({other}): give --out another directory, or "
            "remove that run"
        )
    return True


def write_table(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows with the same keys as a CSV file."""
    header = list(rows[0]) if rows else ["empty"]
    write_csv(header, ([row[column] for column in header] for row in rows), path)


def _trial_name(cell: Cell, point: dict[str, Any]) -> str:
    return json.dumps([cell.policy, cell.size, cell.every, point], sort_keys=True)


def _validation_loss(result: RunResult) -> float:
    """Return the primary validation metric as a number to minimise; 1e9 if the run diverged."""
    if result.error:
        return 1e9
    name = primary_metric(result.valid)
    return result.valid[name] if name in LOWER_IS_BETTER else -result.valid[name]
