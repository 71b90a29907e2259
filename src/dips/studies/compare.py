"""Compare policies over sizes, periods and folds, with the same tuning for each policy.

A comparison resumes where it stopped: runs in the results directory are not trained again.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from dips.data.interactions import Interactions
from dips.data.splitting import FOLDS
from dips.errors import ConfigError, RunError
from dips.evaluation.comparison import (
    BEST_RULE,
    Cell,
    UserSums,
    best_rules,
    compare_pairs,
    summarise,
)
from dips.evaluation.metrics import LOWER_IS_BETTER, primary_metric
from dips.evaluation.tuning import trials
from dips.evaluation.verdict import comparison_verdict
from dips.policy.registry import is_rule, make_policy
from dips.studies.checks import check, resolved, split
from dips.studies.progress import StudyCallback, StudyProgress, TrainingReport
from dips.studies.result import RunResult
from dips.studies.run import starts_of, train_runs
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

ConfigsCallback = Callable[[Sequence[TrainConfig]], None]
"""Called with the settings of some runs."""
ROW_METRICS = ("kept_policy", "valid", "test")
"""Entries of a run's metrics.json that a row of the table holds."""


class RunKey(NamedTuple):
    """One run of a comparison: a cell, a fold, and a repeat of training on that fold."""

    cell: Cell
    fold: int
    repeat: int

    def settings(self) -> dict[str, Any]:
        """Return the settings that the key decides."""
        cell = {"policy": self.cell.policy, "size": self.cell.size, "every": self.cell.every}
        return {**cell, "fold": self.fold, "repeat": self.repeat}


@dataclass(frozen=True)
class ComparisonTable:
    """Result of a comparison.

    Attributes:
        rows: One per run: policy, size, every, fold, repeat, kept_policy, valid and test metrics.
        summary: One per cell and metric: mean and standard deviation over folds. `best-rule` is a
            composite of the rules in `best_rules`.
        paired: One per pair of policies, cell and metric: difference, 95 % interval, p-value, and
            the difference in each fold.
        best_rules: One per size, period and fold: the static policy that is best on validation.
    """

    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    paired: list[dict[str, Any]]
    best_rules: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return what `dips compare --json` prints."""
        names = ("rows", "summary", "paired", "best_rules")
        return {**{name: getattr(self, name) for name in names}, "verdict": self.verdict()}

    def verdict(self) -> str:
        """Return one sentence that compares the policies; empty for a single policy."""
        metric = self.summary[0]["metric"]
        return comparison_verdict(self.summary, self.paired, metric, self.rows, self.best_rules)


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """The cells and folds of a comparison, and the settings of its runs."""

    policies: Sequence[str]
    sizes: Sequence[int]
    every: Sequence[int]
    folds: int = FOLDS
    """Number of folds, from fold 0 on; five test every user once."""
    seed: int = 0
    """Seed of the permutation of users, and of training."""
    repeats: int = 1
    """Number of training runs on each fold, each with another initialisation and sampling."""
    settings: Callable[[str], TrainConfig]
    """From a policy's name to its settings; size, period, seed, fold and repeat are set per run."""
    tune: int = 0
    """Number of tuning trials for each cell; 0: no tuning."""
    tune_once: bool = False
    """Tune each policy at its middle size and the first period only; all its cells use the best."""

    def cells(self) -> list[Cell]:
        """Return all cells. The policy `all` has no size: it has one cell, at the largest.

        Raises:
            ConfigError: If a policy is unknown, if there is no cell, or if the numbers of folds
                and repeats are out of range.
        """
        self._check_folds()
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
        if not found:
            raise ConfigError("there is nothing to compare: give policies and sizes")
        return found

    def _check_folds(self) -> None:
        if not 1 <= self.folds <= FOLDS:
            raise ConfigError(f"folds is {self.folds}: it must be between 1 and {FOLDS}")
        if self.repeats < 1:
            raise ConfigError(f"repeats is {self.repeats}: it must be at least 1")
        if self.folds > 1 and self.policies and self.base().training.split != "users":
            raise ConfigError(
                f"folds is {self.folds}: a split by time has no folds; give --folds 1"
            )

    def runs(self, cells: Sequence[Cell]) -> list[RunKey]:
        """Return the runs of cells: all folds and repeats of the first, then of the next."""
        splits = list(itertools.product(range(self.folds), range(self.repeats)))
        return [RunKey(cell, fold, repeat) for cell in cells for fold, repeat in splits]

    def rules(self) -> list[str]:
        """Return the static policies; `all` is none, as it has no limit on its size."""
        return [name for name in self.policies if is_rule(name, max(self.sizes))]

    def tuned_at(self, cell: Cell) -> Cell:
        """Return the cell whose tuned settings this cell uses."""
        if not self.tune_once:
            return cell
        same = sorted({c.size for c in self.cells() if c.policy == cell.policy})
        return Cell(cell.policy, same[len(same) // 2], self.every[0])

    def config(self, key: RunKey, tuned: dict[str, Any]) -> TrainConfig:
        """Return the settings of one run."""
        fixed = {**key.settings(), "seed": self.seed}
        return self.settings(key.cell.policy).but(**{**tuned, **fixed})

    def first(self, cell: Cell) -> RunKey:
        """Return the first run of a cell, on which settings are checked and tuned."""
        return RunKey(cell, 0, 0)

    def base(self) -> TrainConfig:
        """Return the settings of the first policy, for what all policies share."""
        return self.settings(self.policies[0])


class Comparison:
    """Trains the runs of a plan on one data set and writes the results to a directory.

    Args:
        data: All users.
        plan: What to compare.
        out: Results directory.
        source: Name of the data as the user gave it, for config.json.
        on_start: Called with the settings of the runs that are missing, before training.
        on_progress: Called within epochs and after each.
    """

    def __init__(
        self,
        data: Interactions,
        plan: ComparisonPlan,
        out: Path,
        *,
        source: str,
        on_start: ConfigsCallback | None = None,
        on_progress: StudyCallback | None = None,
    ) -> None:
        self.data, self.plan, self.out, self.source = data, plan, out, source
        self.on_start = on_start or (lambda configs: None)
        self.on_progress = on_progress or (lambda progress: None)

    def run(self) -> ComparisonTable:
        """Tune, train missing runs, and write and return the tables.

        Raises:
            RunError: If `out` holds results of another kind or with other settings.
            TrainingDiverged: If a run diverged; the other runs are written first.
        """
        check_kind(self.out, "comparison")
        return self._table(self.train())

    def train(self) -> dict[RunKey, Path]:
        """Tune, train missing runs, and return the directory of every run."""
        cells = self.plan.cells()
        self._begin([self.plan.config(self.plan.first(cell), {}) for cell in cells])
        tuned = self._tune(cells)
        wanted = {
            key: self.plan.config(key, tuned[self.plan.tuned_at(key.cell)])
            for key in self.plan.runs(cells)
        }
        missing = [key for key, config in wanted.items() if not self._has_run(key, config)]

        self.on_start([wanted[key] for key in missing])
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
        """Return the best settings of each cell on the validation users of fold 0."""
        places = list(dict.fromkeys(self.plan.tuned_at(cell) for cell in cells))
        if not self.plan.tune:
            return {cell: {} for cell in places}
        path = self.out / "tuning.json"
        settings = {**self.plan.base().to_dict(), "seed": self.plan.seed, "data": self.source}
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

        configs = [self.plan.config(self.plan.first(cell), point) for cell, point in missing]
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
        decided = [resolved(self.data, config) for config in configs]
        epochs = [
            config.training.epochs
            * (len(starts_of(config)) + len(config.policy_training.baselines))
            for config in decided
        ]
        total = sum(epochs)
        finished = 0

        def report(found: TrainingReport) -> None:
            done = min(total, finished + found.runs * found.done)
            self.on_progress(StudyProgress(phase, done, total, found.interactions_per_second))

        def store(index: int, result: RunResult) -> None:
            nonlocal finished
            finished += epochs[index]
            keep(index, result)

        if configs:
            jobs = [(split(self.data, config), config) for config in configs]
            stacks = self.out / "stacks"
            train_runs(
                jobs, test=test, on_progress=report, on_result=store, directory=stacks, resume=True
            )
            shutil.rmtree(stacks, ignore_errors=True)

    def _place(self, key: RunKey) -> Path:
        return self.out / "runs" / run_name(*key)

    def _has_run(self, key: RunKey, config: TrainConfig) -> bool:
        return has_run(self._place(key), {**config.to_dict(), "data": self.source})

    def _table(self, places: dict[RunKey, Path]) -> ComparisonTable:
        table = make_table(*table_rows(places), self.plan.rules())
        write_tables(table, self.out)
        return table


def table_rows(
    places: Mapping[RunKey, Path],
) -> tuple[dict[RunKey, dict[str, Any]], dict[RunKey, UserSums]]:
    """Read finished runs.

    Args:
        places: Directory of every run.

    Returns:
        Rows with validation and test metrics, and the sums of the test users.
    """
    rows: dict[RunKey, dict[str, Any]] = {}
    users: dict[RunKey, UserSums] = {}
    for key, place in places.items():
        metrics = read_metrics(place)
        rows[key] = {**key.settings(), **{name: metrics[name] for name in ROW_METRICS}}
        users[key] = replace(read_user_sums(place), fold=key.fold)
    return rows, users


def write_tables(table: ComparisonTable, out: Path) -> None:
    """Write rows.csv, summary.csv, paired.csv and best_rules.csv."""
    flat = [
        {
            **{name: value for name, value in row.items() if name not in ("valid", "test")},
            **{f"valid_{name}": value for name, value in row["valid"].items()},
            **{f"test_{name}": value for name, value in row["test"].items()},
        }
        for row in table.rows
    ]
    write_table(flat, out / "rows.csv")
    for name in ("summary", "paired", "best_rules"):
        write_table(getattr(table, name), out / f"{name}.csv")


def make_table(
    rows: Mapping[RunKey, dict[str, Any]], users: Mapping[RunKey, UserSums], rules: Sequence[str]
) -> ComparisonTable:
    """Return the tables of a comparison from its runs.

    Args:
        rows: Rows of the runs, with validation and test metrics.
        users: Sums of the test users of the runs.
        rules: Static policies, among which `best-rule` chooses on validation.
    """
    chosen = best_rules(list(rows.values()), rules)
    composite = {
        RunKey(Cell(BEST_RULE, *place), key.fold, key.repeat): key
        for place, folds in chosen.items()
        for key in rows
        if key.fold in folds and key.cell == Cell(folds[key.fold], *place)
    }
    by_cell: dict[Cell, list[UserSums]] = {}
    for key, one in {**users, **{key: users[own] for key, own in composite.items()}}.items():
        by_cell.setdefault(key.cell, []).append(one)
    composed = [{**rows[own], "policy": BEST_RULE} for own in composite.values()]
    best = [
        {"size": size, "every": every, "fold": fold, "policy": policy}
        for (size, every), folds in chosen.items()
        for fold, policy in folds.items()
    ]
    summary = summarise([*rows.values(), *composed])
    paired = compare_pairs(by_cell, rules=rules)
    return ComparisonTable(list(rows.values()), summary, paired, best)


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


def run_name(cell: Cell, fold: int, repeat: int) -> str:
    """Return the name of the directory of a run."""
    policy = cell.policy.replace(":", "-").replace("/", "-")
    return f"{policy}-k{cell.size}-t{cell.every}-f{fold}-r{repeat}"


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
