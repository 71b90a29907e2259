"""Run all experiments of the paper on one data set, in stages.

Each stage calls the function behind a command. Ratings are compared as they are. Stages that
predict items first convert data with ratings to implicit data.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dips.data import prepared
from dips.data.atomic_write import atomic_write
from dips.data.filtering import recipe_by_name
from dips.data.interactions import Interactions
from dips.errors import ConfigError, DataError, RunError, choose_from
from dips.evaluation.comparison import Cell
from dips.recommender.session import LENGTH
from dips.report.results import read_results
from dips.report.story_page import story_page
from dips.studies.checks import device_of, resolved
from dips.studies.compare import ComparisonTable, run_name
from dips.studies.paper_plan import STAGES, PaperPlan
from dips.studies.progress import StudyCallback, StudyProgress
from dips.studies.run import starts_of
from dips.studies.run_directory import read_split
from dips.studies.stages import Journal, Stage, StageProgress, run_stages
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

FILE, REPORT, STORY = "paper.json", "report.html", "story.html"
STARS = (3.5, 5.0)
"""A highest rating between these two means stars; then ratings above the first are likes."""
STORY_STEPS = 24
"""Number of predictions in the story."""
REDUCED = ": a reduced version, which tests the pipeline, not the policies"
EPOCH_COST = {"influence": 6.0, "hardest": 2.0, "learned": 8.0, "dips": 4.0, "dips@1": 3.0}
"""Approximate cost of an epoch, relative to an epoch of `last`."""
UPDATE_EVERY_STEP_COST = 50.0
"""Approximate factor of the cost with a parameter update after every step."""
TRUE_GRADIENT_COST = 0.1
"""Approximate cost of a true gradient per user, step, interaction and queue entry."""


class StudyFunctions(NamedTuple):
    """The functions of `dips.api` that the stages call."""

    compare: Callable[..., Any]
    transfer: Callable[..., Any]
    session: Callable[..., Any]
    gradients: Callable[..., Any]
    story: Callable[..., Any]
    report: Callable[..., Any]


class PaperStudy:
    """Runs the paper's experiments in one directory.

    Args:
        data: All users.
        plan: Cells, folds and settings.
        out: Results directory.
        functions: The functions that the stages call.
        source: Name of the data as the user gave it.
        command: The command that was typed, for the report.
        on_results: Called with each finished results directory.
    """

    def __init__(
        self,
        data: Interactions,
        plan: PaperPlan,
        out: Path,
        functions: StudyFunctions,
        *,
        source: str,
        command: str = "",
        on_results: Callable[[Path], None] = lambda directory: None,
    ) -> None:
        self.data, self.plan, self.out = first_interactions(data, plan.longest), plan, out
        self.functions, self.on_results = functions, on_results
        self.source, self.command = source, command

    def run(
        self, wanted: Sequence[str], on_progress: Callable[[StageProgress], None]
    ) -> dict[str, Any]:
        """Run the wanted stages that are not done, and write the report.

        Args:
            wanted: Names of stages, of `STAGES`.
            on_progress: Called with the progress of all stages.

        Returns:
            The journal, the verdict of the comparison, and the paths of report and story.

        Raises:
            ConfigError: If a stage is unknown.
            RunError: If no stage could be run.
        """
        for name in wanted:
            if name not in STAGES:
                raise ConfigError(f"there is no stage '{name}': {choose_from(name, STAGES)}")
        for policy in self.plan.grids["compare"].policies:
            device_of(self._config(policy))  # raises for bad settings, before anything is written
        about = {"data": self.source, "command": self.command}
        journal = Journal(self.out / FILE, {**about, "items": self.item_rule()})
        run_stages([stage for stage in self.stages() if stage.name in wanted], journal, on_progress)
        if all(entry.state == "skipped" for entry in journal.entries.values()):
            reasons = "; ".join(f"{name}: {e.why}" for name, e in journal.entries.items())
            raise RunError(f"no stage could be run: {reasons}")
        self.functions.report([self.out], self.out / REPORT)
        done = {name for name, entry in journal.entries.items() if entry.state == "done"}
        pages = {"report": REPORT, **({"story": STORY} if "story" in done else {})}
        return {
            **journal.to_dict(),
            "verdict": comparison_verdict_in(self.out / "compare") if "compare" in done else "",
            **{name: str(self.out / page) for name, page in pages.items()},
        }

    def stages(self) -> list[Stage]:
        """Return all stages, in order."""
        grids = {"compare": self.compare, "transfer": self.transfer, "session": self.session}
        tables = [self._table(name, run) for name, run in grids.items()]
        seed = self.plan.seed
        own = {"data": self.source, "seed": seed, "settings": self._settings()}
        gradients = Stage(
            name="gradients",
            plan={**own, **self.plan.gradients},
            costs={"gradients": TRUE_GRADIENT_COST * math.prod(self.plan.gradients.values())},
            output=self._run("dips") / "gradients.json",
            run=self.gradients,
            needs=(tables[0],),
            scale=self.scale(),
        )
        story = Stage(
            name="story", plan=own, costs={}, output=self.out / STORY, run=self.story,
            needs=(tables[0],), scale=self.scale(),
        )  # fmt: skip
        return [*tables, gradients, story]

    def compare(self, on_progress: StudyCallback) -> None:
        """Compare policies by size and period, on the original data."""
        data, source = self.whole()
        every = self.plan.grids["compare"].every
        self._fill("compare", self.functions.compare, data, source, on_progress, every=every)

    def transfer(self, on_progress: StudyCallback) -> None:
        """Score another recommender on the sketches of the policies."""
        data, source = self.items()
        self._fill(
            "transfer", self.functions.transfer, data, source, on_progress, command=self.command
        )

    def session(self, on_progress: StudyCallback) -> None:
        """Train session models with a sketch of earlier sessions."""
        data, source = self.items()
        if data.lengths.max() <= LENGTH:
            raise DataError(
                f"{data.name}: no history is longer than a session of {LENGTH}, so there is no "
                "earlier session to sketch"
            )
        self._fill(
            "session", self.functions.session, data, source, on_progress, command=self.command
        )

    def gradients(self, on_progress: StudyCallback) -> None:
        """Compare the policy gradients of the first run of `dips` at size 4 with the true ones."""
        run = self._run("dips")
        members = read_split(run)["train"]
        users = [user for user in range(self.data.users) if self.data.user_id(user) in members]

        def report(done: int, total: int) -> None:
            on_progress(StudyProgress("gradients", done, total, unit="steps"))

        self.functions.gradients(
            run, self.data.select(users), **self.plan.gradients, on_progress=report
        )

    def story(self, on_progress: StudyCallback) -> None:
        """Write the story of a test user of the first run of `learned` at size 4."""
        on_progress(StudyProgress("story", 0, 1, unit="users"))
        run = self._run("learned")
        user = user_of_length(self.data, read_split(run)["test"], STORY_STEPS)
        story = self.functions.story(run, user, self.data).last(STORY_STEPS)
        with atomic_write(self.out / STORY) as part:
            part.write_text(story_page(story), encoding="utf-8")

    def whole(self) -> tuple[Interactions, str]:
        """Return the data of the comparison, and the source that names it."""
        if not self.plan.longest:
            return self.data, self.source
        return self._kept("", lambda: self.data)

    def items(self) -> tuple[Interactions, str]:
        """Return the data without ratings, and the source that names it."""
        if not self.data.explicit:
            return self.whole()
        return self._kept("-implicit", lambda: to_implicit(self.data))

    def _kept(self, ending: str, make: Callable[[], Interactions]) -> tuple[Interactions, str]:
        """Return prepared data beside the results; it is written once."""
        cut = f"-first-{self.plan.longest}" if self.plan.longest else ""
        name = f"{self.data.name}{cut}{ending}-{fingerprint(self.data)}"
        place = self.out / f"{name}.safetensors"
        if not place.exists():
            prepared.write(make(), place)
        return prepared.open_prepared(place), str(place)

    def scale(self) -> str:
        """Describe users, interactions, splits and epochs in words."""
        users, all_users, longest = self._users(), self.data.users, self.plan.longest
        epochs = self.plan.settings.get("epochs")
        facts = [
            f"{users:,} of {all_users:,} users" if users < all_users else f"{users:,} users",
            *([f"the first {longest} of their interactions"] if longest else []),
            _counted(self.plan.folds, "fold"),
            f"up to {epochs} epoch{'s' if epochs > 1 else ''}"
            if epochs
            else "default epochs of each policy",
        ]
        is_small = users < all_users or longest or epochs
        return ", ".join(facts) + (REDUCED if is_small else "")

    def item_rule(self) -> str:
        """Describe how ratings are converted to implicit data, in words."""
        if not self.data.explicit:
            return "the data has no ratings: every interaction counts"
        return recipe_by_name("implicit").about if has_stars(self.data) else "every rating counts"

    def _table(self, name: str, run: Callable[[StudyCallback], None]) -> Stage:
        """Return a stage that fills a grid of cells, in a directory of its name."""
        grid = self.plan.grids[name]
        folds = {"folds": self.plan.folds, "seed": self.plan.seed}
        plan = {"data": self.source, **asdict(grid), **folds}
        rows = self._rows() * self.plan.folds
        cells = rows * len(grid.sizes) * len(grid.every)
        policies = cells * sum(self._effort(policy) for policy in grid.policies)
        one = rows * resolved(self.data, self._config("last")).training.epochs
        costs = {
            "compare": {"training": policies},
            "transfer": {"gru": one, "policies": policies, "reading sketches": one},
            "session": {"policies": policies, "session models": one * len(grid.sizes) * 2},
        }
        return Stage(
            name=name,
            plan={**plan, "settings": self._settings()},
            costs=costs[name],
            output=self.out / name / "figure.png",
            run=run,
            scale=self.scale(),
        )

    def _fill(
        self,
        name: str,
        function: Callable[..., Any],
        data: Interactions,
        source: str,
        on_progress: StudyCallback,
        **more: Any,
    ) -> None:
        grid, place = self.plan.grids[name], self.out / name
        function(
            data, grid.policies, grid.sizes, folds=self.plan.folds, seed=self.plan.seed, out=place,
            source=source, on_progress=on_progress, recipe=self.plan.recipe, **more,
            **self.plan.settings,
        )  # fmt: skip
        self.on_results(place)

    def _run(self, policy: str) -> Path:
        cell = Cell(policy, 4, 1)
        return self.out / "compare" / "runs" / run_name(cell, 0, 0)

    def _config(self, policy: str) -> TrainConfig:
        flags = {**self.plan.settings, "policy": policy}
        return build_config(self.plan.recipe, flags=flags)

    def _settings(self) -> dict[str, Any]:
        """Return the settings that affect results."""
        kept = {name: value for name, value in self.plan.settings.items() if name != "device"}
        return {"longest": self.plan.longest, "recipe": self.plan.recipe, **kept}

    def _rows(self) -> float:
        """Return the approximate number of interactions."""
        return float(self.data.lengths.mean()) * self._users()

    def _users(self) -> int:
        return min(self.plan.settings.get("max_users") or self.data.users, self.data.users)

    def _effort(self, policy: str) -> float:
        config = resolved(self.data, self._config(policy))
        return (
            EPOCH_COST.get(policy, 1.0)
            * config.training.epochs
            * len(starts_of(config))
            * (UPDATE_EVERY_STEP_COST if config.training.update_interval else 1.0)
        )


def comparison_verdict_in(place: Path) -> str:
    """Return the verdict of the comparison in a results directory."""
    (found,) = read_results([place]).comparisons
    return ComparisonTable(found.rows, found.summary, found.paired, found.best_rules).verdict()


def first_interactions(data: Interactions, longest: int) -> Interactions:
    """Cut all histories after `longest` interactions; 0 keeps all."""
    if not longest:
        return data
    return replace(data, lengths=np.minimum(data.lengths, longest))


def fingerprint(data: Interactions) -> str:
    """Return a checksum of items, ratings and lengths, as eight hexadecimal digits."""
    found = 0
    for column in (data.item, data.rating, data.lengths):
        if column is not None:
            found = zlib.crc32(np.ascontiguousarray(column).data, found)
    return f"{found:08x}"


def has_stars(data: Interactions) -> bool:
    """Return whether the highest rating is above 3.5 and at most 5, as with stars."""
    low, high = STARS
    return low < data.rating_range()[1] <= high


def to_implicit(data: Interactions) -> Interactions:
    """Convert data with ratings to implicit data: likes of stars, all of other ratings."""
    kept = recipe_by_name("implicit")(data) if has_stars(data) else replace(data, rating=None)
    facts = {name: value for name, value in kept.about.items() if name != "rating_range"}
    return replace(kept, about={**facts, "name": f"{data.name}-implicit"})


def user_of_length(data: Interactions, users: set[str], length: int) -> str:
    """Return the first of the given users whose history length is nearest to `length`."""
    rows = [user for user in range(data.users) if data.user_id(user) in users]
    return data.user_id(rows[int(np.abs(data.lengths[rows] - length).argmin())])


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
