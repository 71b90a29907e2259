"""A policy learned with one recommender chooses what another one reads: cells, files, tables.

The studies of transfer and of sessions are this with other readers. Resumes where it stopped: a
cell that is in the results directory is not computed again, nor is a policy trained again.
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
from dips.evaluation.transfer import SourcePolicy, best_in_words, most_saved, size_ratios
from dips.policy.registry import learns, make_policy
from dips.sketch.selection import selector_named
from dips.studies.checks import check
from dips.studies.compare import (
    Plan,
    Study,
    Update,
    Watch,
    is_there,
    make_room,
    name_of,
    refuse_other,
    write_rows,
)
from dips.studies.run_directory import (
    differing,
    open_run,
    read_config,
    read_metrics,
    read_users,
    write_json,
    write_users,
)
from dips.training import checkpoint
from dips.training.config import TrainConfig

Key = tuple[Cell, int]
"""A cell and a seed."""


@dataclass(frozen=True, eq=False)
class Scored:
    """What came out in one cell: who chose, and how those were predicted who test."""

    source_policy: str
    scores: Scores
    part: Interactions


@dataclass(frozen=True)
class Result:
    """What a study found: one row per cell and seed, means, paired differences, size ratios."""

    about: dict[str, Any]
    """Kind, data, command, settings, and what the paper claims beside what was found."""
    rows: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    paired: list[dict[str, Any]]
    ratios: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """What the study's JSON file holds."""
        tables = {name: getattr(self, name) for name in ("rows", "summary", "paired", "ratios")}
        return {**self.about, **tables}

    def write(self, out: Path) -> None:
        """Tables as CSV, and everything as one JSON file named after the kind of study."""
        flat = [
            {**{name: value for name, value in row.items() if name != "test"}, **row["test"]}
            for row in self.rows
        ]
        write_rows(flat, out / "rows.csv")
        for name in ("summary", "paired", "ratios"):
            write_rows(getattr(self, name), out / f"{name}.csv")
        write_json(self.to_dict(), out / f"{self.about['kind']}.json")


def choosing(plan: Plan) -> Plan:
    """The same plan for those who choose: cosines are the readers' alone."""
    given = plan.settings
    return replace(plan, settings=lambda policy: given(policy).but(cosine=-1))


def reading(reader: TrainConfig, epochs: int) -> TrainConfig:
    """The settings of a reader, with epochs of its own; 0: as many as all others."""
    if epochs < 0:
        raise ConfigError(f"--reader-epochs is {epochs}: it must be at least 0")
    return reader.but(epochs=epochs or reader.epochs)


class PolicyTransfer:
    """The policies of a plan at work for other readers, in a results directory."""

    def __init__(
        self, data: Interactions, plan: Plan, out: Path, *, source: str, watch: Watch | None = None
    ) -> None:
        self.data, self.plan, self.out, self.source = data, choosing(plan), out, source
        self.watch = watch or (lambda update: None)
        self.rows: list[dict[str, Any]] = []
        self.users: dict[Cell, list[UserSums]] = {}

    def check(self, kind: str, readers: Sequence[TrainConfig]) -> None:
        """Refuse what cannot work before anything is written; then make room for the cells."""
        if "all" in self.plan.policies:
            raise ConfigError("policy 'all' is no sketch to read: leave it out of the policies")
        cells = [self.plan.config(cell, self.plan.seeds[0], {}) for cell in self.plan.cells()]
        for config in [*{config.policy: config for config in cells}.values(), *readers]:
            check(self.data, config)
        refuse_other(self.out, kind)
        make_room(self.out, "cells")

    def train(self, plan: Plan, stage: str) -> dict[Key, Path]:
        """Train what is missing of a plan, and say where its runs are."""

        def watch(update: Update) -> None:
            self.watch(replace(update, stage=stage))

        return Study(self.data, plan, self.out, source=self.source, watch=watch).runs()

    def choosers(self) -> Callable[[Key], SourcePolicy]:
        """Train the policies that learn or ask; from a cell and a seed to who chooses there."""
        largest = max(self.plan.sizes)
        busy = [name for name in self.plan.policies if _is_trained(name, largest)]
        places = self.train(replace(self.plan, policies=busy), "policies") if busy else {}

        def choose(key: Key) -> SourcePolicy:
            if key in places:
                return SourcePolicy.of(open_run(places[key]))
            (cell, seed), config = key, self.plan.config(*key, {})
            policy = make_policy(cell.policy, size=cell.size, damping=config.damping)
            return SourcePolicy(
                name=cell.policy,
                policy=policy,
                size=cell.size,
                schedule=config.schedule,
                seed=seed,
                selector=selector_named(config.choice),
            )

        return choose

    def cell(self, key: Key, settings: dict[str, Any], compute: Callable[[Path], Scored]) -> None:
        """Take a cell's scores from its directory, or compute them and leave them there."""
        cell, seed = key
        place = self.out / "cells" / name_of(cell, seed)
        named = {"policy": cell.policy, "size": cell.size, "every": cell.every, "seed": seed}
        wanted = {**settings, **named, "data": self.source}
        if not is_there(place, wanted):
            if (place / "config.json").exists() and differing(read_config(place), wanted):
                checkpoint.remove(place)  # begun with other settings: no use for these
            write_json(wanted, place / "config.json")
            found = compute(place)
            write_users(found.scores, found.part, place / "test_users.csv")
            metrics = {**named, "kept_policy": found.source_policy, "test": found.scores.metrics}
            write_json(metrics, place / "metrics.json")  # the last: now it is finished
        self.take(cell, place)

    def take(self, cell: Cell, place: Path) -> None:
        """Put what a directory holds into the tables, as a cell of theirs."""
        metrics = read_metrics(place)
        about = {"policy": cell.policy, "size": cell.size, "every": cell.every}
        found = {name: metrics[name] for name in ("seed", "kept_policy", "test")}
        self.rows.append({**about, **found})
        self.users.setdefault(cell, []).append(read_users(place))

    def tables(self) -> Result:
        """All that was taken. Only policies of the plan have ratios of sizes."""
        summary = summarise(self.rows)
        sketched = [row for row in summary if row["policy"] in self.plan.policies]
        return Result({}, self.rows, summary, compare_pairs(self.users), size_ratios(sketched))

    def about(self, kind: str, reader: TrainConfig, command: str) -> dict[str, Any]:
        """What a study is, for those who come later."""
        return {
            "kind": kind,
            "data": self.source,
            "command": command,
            "sizes": list(self.plan.sizes),
            "seeds": list(self.plan.seeds),
            "every": self.plan.every[0],
            "reader": reader.to_dict(),
            "policies": {name: self.plan.settings(name).to_dict() for name in self.plan.policies},
        }


def saved(tables: Result, against: str = "reservoir") -> list[dict[str, Any]]:
    """For each policy the most that it saves against another, with a sentence, by each metric.

    A policy whose rival chose in its place does not get the rival's credit: the sentence says so.
    """
    found = []
    for metric, policy in dict.fromkeys(
        (row["metric"], row["policy"]) for row in tables.ratios if row["against"] == against
    ):
        best = most_saved(tables.ratios, metric, policy, against)
        assert best is not None  # there is at least the row that was just met
        place = (policy, best["size"])
        same = [row for row in tables.rows if (row["policy"], row["size"]) == place]
        chosen = sorted({row["kept_policy"] for row in same})
        credit = "" if chosen == [policy] else f" (chosen by {', '.join(chosen)})"
        found.append({**best, "kept_policies": chosen, "sentence": best_in_words(best) + credit})
    return found


def _is_trained(name: str, size: int) -> bool:
    policy = make_policy(name, size=size)
    return learns(policy) or bool(policy.required_signals)
