"""Policy transfer: policies trained with one recommender provide the sketches of a target model.

The transfer study and the session study differ in their target model only. Both resume where they
stopped: cells and runs in the results directory are not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.evaluation.comparison import Cell, UserSums, compare_pairs, summarise
from dips.evaluation.progressive import Scores
from dips.evaluation.transfer import (
    SourcePolicy,
    describe_largest_saving,
    largest_saving,
    size_ratios,
)
from dips.policy.registry import learns, make_policy
from dips.sketch.selection import make_selector
from dips.studies.checks import check
from dips.studies.compare import (
    Comparison,
    ComparisonPlan,
    RunKey,
    check_kind,
    has_run,
    make_subdirectory,
    run_name,
    write_table,
)
from dips.studies.progress import StudyCallback, StudyProgress
from dips.studies.run_directory import (
    changed_settings,
    config_document,
    open_run,
    read_config,
    read_metrics,
    read_user_sums,
    write_json,
    write_user_sums,
)
from dips.training import checkpoint
from dips.training.config import TrainConfig


@dataclass(frozen=True, eq=False)
class CellScores:
    """Scores of a target model in one cell, on the test users of one fold."""

    source_policy: str
    """Policy that made the sketches. If a baseline was better on validation, its name."""
    scores: Scores
    part: Interactions


@dataclass(frozen=True)
class TransferResult:
    """Result of a transfer or session study.

    `rows` has one row per cell, fold and repeat, `summary` means over folds, `paired` the
    differences of policies, and `ratios` the sizes of equal quality.
    """

    about: dict[str, Any]
    """Kind, data, command, settings, and the paper's claim beside the result."""
    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    paired: list[dict[str, Any]]
    ratios: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the study's JSON file."""
        tables = {name: getattr(self, name) for name in ("rows", "summary", "paired", "ratios")}
        return {**self.about, **tables}

    def write(self, out: Path) -> None:
        """Write the tables as CSV and everything as transfer.json or session.json."""
        flat = [
            {**{name: value for name, value in row.items() if name != "test"}, **row["test"]}
            for row in self.rows
        ]
        write_table(flat, out / "rows.csv")
        for name in ("summary", "paired", "ratios"):
            write_table(getattr(self, name), out / f"{name}.csv")
        write_json(self.to_dict(), out / f"{self.about['kind']}.json")


def source_plan(plan: ComparisonPlan) -> ComparisonPlan:
    """Return the plan of the source policies, without `cosine`.

    Source policies are trained with `dot`, which has no cosine scores; only the target model has.
    """
    given = plan.settings
    return replace(plan, settings=lambda policy: given(policy).but(cosine=None))


def target_config(target: TrainConfig, epochs: int) -> TrainConfig:
    """Return the settings of a target model with its own number of epochs.

    Args:
        target: Settings that the target model shares with the source policies.
        epochs: Epochs of the target model. 0: use the setting `epochs`, as the source policies do.

    Raises:
        ConfigError: If `epochs` is below 0.
    """
    if epochs < 0:
        raise ConfigError(f"--target-epochs is {epochs}: it must be at least 0")
    return target.but(epochs=epochs or target.training.epochs)


class PolicyTransfer:
    """Scores a target model on the sketches of all policies of a plan, in a results directory.

    Args:
        data: All users.
        plan: Policies, sizes, periods and folds.
        out: Results directory.
        source: Name of the data as the user gave it.
        on_progress: Called with the progress of each phase.
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
        self.data, self.plan, self.out, self.source = data, source_plan(plan), out, source
        self.on_progress = on_progress or (lambda progress: None)
        self.rows: list[dict[str, Any]] = []
        self.users: dict[Cell, list[UserSums]] = {}

    def check_settings(self, kind: str, targets: Sequence[TrainConfig]) -> None:
        """Check all settings before anything is written; then create the directory of cells.

        Raises:
            ConfigError: If settings do not go together, or if `all` is among the policies.
            RunError: If the directory holds results of another kind of study.
        """
        if "all" in self.plan.policies:
            raise ConfigError("policy 'all' keeps no sketch: leave it out of --policies")
        cells = [self.plan.config(self.plan.first(cell), {}) for cell in self.plan.cells()]
        for config in [*{config.sketch.policy: config for config in cells}.values(), *targets]:
            check(self.data, config)
        check_kind(self.out, kind)
        make_subdirectory(self.out, "cells")

    def train(self, plan: ComparisonPlan, phase: str) -> dict[RunKey, Path]:
        """Train the missing runs of a plan, and return the directory of each run."""

        def report(progress: StudyProgress) -> None:
            self.on_progress(replace(progress, phase=phase))

        return Comparison(self.data, plan, self.out, source=self.source, on_progress=report).train()

    def source_policies(self) -> Callable[[RunKey], SourcePolicy]:
        """Train the policies that learn or read signals.

        Returns:
            A function from a run to its source policy.
        """
        largest = max(self.plan.sizes)
        trained = [name for name in self.plan.policies if _is_trained(name, largest)]
        places = self.train(replace(self.plan, policies=trained), "policies") if trained else {}

        def source_policy(key: RunKey) -> SourcePolicy:
            if key in places:
                return SourcePolicy.of(open_run(places[key]))
            cell, config = key.cell, self.plan.config(key, {})
            policy = make_policy(cell.policy, size=cell.size, damping=config.sketch.damping)
            return SourcePolicy(
                name=cell.policy,
                policy=policy,
                size=cell.size,
                schedule=config.sketch.schedule,
                seed=config.training.training_seed,
                selector=make_selector(config.sketch.selection),
            )

        return source_policy

    def score_cell(
        self, key: RunKey, settings: dict[str, Any], compute: Callable[[Path], CellScores]
    ) -> None:
        """Read the scores of a cell from its directory, or compute and write them.

        Args:
            key: Cell, fold and repeat.
            settings: Settings of the target model.
            compute: From the cell's directory to its scores.
        """
        place = self.out / "cells" / run_name(*key)
        named = {**key.settings(), "seed": self.plan.seed}
        asked = {**settings, **named}
        wanted = {**asked, "data": self.source}
        if not has_run(place, wanted):
            if (place / "config.json").exists() and changed_settings(read_config(place), wanted):
                checkpoint.remove(place)  # a checkpoint of other settings
            write_json(config_document(asked, self.source), place / "config.json")
            found = compute(place)
            write_user_sums(found.scores, found.part, place / "test_users.csv")
            metrics = {**named, "kept_policy": found.source_policy, "test": found.scores.metrics}
            write_json(metrics, place / "metrics.json")  # written last: now the cell is finished
        self.add_run(key, place)

    def add_run(self, key: RunKey, place: Path) -> None:
        """Add the scores in a directory to the tables, as a run of the key's cell."""
        metrics = read_metrics(place)
        found = {name: metrics[name] for name in ("kept_policy", "test")}
        self.rows.append({**key.settings(), **found})
        sums = replace(read_user_sums(place), fold=key.fold)
        self.users.setdefault(key.cell, []).append(sums)

    def tables(self) -> TransferResult:
        """Return the tables of all cells; size ratios are for the plan's policies only."""
        summary = summarise(self.rows)
        sketched = [row for row in summary if row["policy"] in self.plan.policies]
        return TransferResult(
            {}, self.rows, summary, compare_pairs(self.users), size_ratios(sketched)
        )

    def about(self, kind: str, target: TrainConfig, command: str) -> dict[str, Any]:
        """Return data, command and settings of the study."""
        return {
            "kind": kind,
            "data": self.source,
            "command": command,
            "sizes": list(self.plan.sizes),
            "folds": self.plan.folds,
            "seed": self.plan.seed,
            "repeats": self.plan.repeats,
            "every": self.plan.every[0],
            "target_model": target.to_dict(),
            "policies": {name: self.plan.settings(name).to_dict() for name in self.plan.policies},
        }


def largest_savings(tables: TransferResult, against: str = "reservoir") -> list[dict[str, Any]]:
    """Return the largest saving of each policy against another policy, per metric.

    The sentence names the baseline where a baseline was kept instead of the policy.
    """
    found = []
    for metric, policy in dict.fromkeys(
        (row["metric"], row["policy"]) for row in tables.ratios if row["against"] == against
    ):
        best = largest_saving(tables.ratios, metric, policy, against)
        assert best is not None  # `ratios` has such a row
        place = (policy, best["size"])
        same = [row for row in tables.rows if (row["policy"], row["size"]) == place]
        chosen = sorted({row["kept_policy"] for row in same})
        suffix = "" if chosen == [policy] else f" (kept: {', '.join(chosen)})"
        found.append(
            {**best, "kept_policies": chosen, "sentence": describe_largest_saving(best) + suffix}
        )
    return found


def _is_trained(name: str, size: int) -> bool:
    policy = make_policy(name, size=size)
    return learns(policy) or bool(policy.required_signals)
