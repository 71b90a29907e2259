"""Everything that the paper shows, for one data set: stages as data, and what they call.

Is given the functions behind the commands, so that a stage is what the command does. Ratings are
compared as they are; where items are predicted, data with ratings is turned implicit first.
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
from dips.data.atomic import written
from dips.data.filtering import by_name
from dips.data.interactions import Interactions
from dips.errors import ConfigError, DataError, RunError
from dips.evaluation.comparison import Cell
from dips.recommender.session import LENGTH
from dips.report.results import read_results
from dips.report.story_page import story_page
from dips.studies.checks import device_of
from dips.studies.compare import Table, Update, Watch, name_of
from dips.studies.paper_plan import PaperPlan
from dips.studies.run_directory import read_split
from dips.studies.stages import Journal, Progress, Stage, carry_out
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

FILE, REPORT, STORY = "paper.json", "report.html", "story.html"
STAGES = ("compare", "transfer", "session", "gradients", "story")
STARS = (3.5, 5.0)
"""Ratings that end between these two are stars, and those above the first are likes."""
TOLD = 24
"""Predictions that a story shows."""
SMALL = ": a small version, which shows that all works, and little of what is best"
EFFORT = {"influence": 6.0, "hardest": 2.0, "learned": 8.0, "dips": 4.0, "dips@1": 3.0}
"""What an epoch costs beside one of `last`, about."""
STEPWISE = 50.0
"""And so many times that where parameters move after every step."""

TRUTH = 0.1
"""And what a true gradient costs for each user, interaction and decision of the queue."""


class Tools(NamedTuple):
    """The functions behind the commands."""

    compare: Callable[..., Any]
    transfer: Callable[..., Any]
    session: Callable[..., Any]
    gradients: Callable[..., Any]
    story: Callable[..., Any]
    report: Callable[..., Any]


class PaperStudy:
    """Everything that the paper shows, in one directory."""

    def __init__(
        self,
        data: Interactions,
        plan: PaperPlan,
        out: Path,
        tools: Tools,
        *,
        source: str,
        command: str = "",
        note: Callable[[Path], None] = lambda place: None,
    ) -> None:
        self.data, self.plan, self.out, self.tools = first(data, plan.longest), plan, out, tools
        self.source, self.command, self.note = source, command, note

    def result(self, wanted: Sequence[str], watch: Callable[[Progress], None]) -> dict[str, Any]:
        """Carry out what is wanted and not done yet, and put it on a page."""
        for name in wanted:
            if name not in STAGES:
                raise ConfigError(f"there is no stage '{name}': choose from {', '.join(STAGES)}")
        for policy in self.plan.grids["compare"].policies:
            device_of(self._config(policy))  # refuses bad settings, before anything is written
        about = {"data": self.source, "command": self.command}
        journal = Journal(self.out / FILE, {**about, "items": self.turned()})
        carry_out([stage for stage in self.stages() if stage.name in wanted], journal, watch)
        if all(entry.state == "skipped" for entry in journal.entries.values()):
            told = "; ".join(f"{name}: {e.why}" for name, e in journal.entries.items())
            raise RunError(f"nothing could be run: {told}")
        self.tools.report([self.out], self.out / REPORT)
        done = {name for name, entry in journal.entries.items() if entry.state == "done"}
        pages = {"report": REPORT, **({"story": STORY} if "story" in done else {})}
        return {
            **journal.to_dict(),
            "verdict": verdict(self.out / "compare") if "compare" in done else "",
            **{name: str(self.out / page) for name, page in pages.items()},
        }

    def stages(self) -> list[Stage]:
        """All of them, in order."""
        grids = {"compare": self.compare, "transfer": self.transfer, "session": self.session}
        tables = [self._table(name, run) for name, run in grids.items()]
        seed = self.plan.seeds[0]
        own = {"data": self.source, "seed": seed, "settings": self._settings()}
        gradients = Stage(
            name="gradients",
            plan={**own, **self.plan.gradients},
            costs={"gradients": TRUTH * math.prod(self.plan.gradients.values())},
            leaves=self._run("dips") / "gradients.json",
            run=self.gradients,
            needs=(tables[0],),
            scale=self.scale(),
        )
        story = Stage(
            name="story", plan=own, costs={}, leaves=self.out / STORY, run=self.story,
            needs=(tables[0],), scale=self.scale(),
        )  # fmt: skip
        return [*tables, gradients, story]

    def compare(self, watch: Watch) -> None:
        """Policies by size and period, on the data as it is."""
        data, source = self.whole()
        every = self.plan.grids["compare"].every
        self._fill("compare", self.tools.compare, data, source, watch, every=every)

    def transfer(self, watch: Watch) -> None:
        """What policies keep, read by another recommender."""
        data, source = self.items()
        self._fill("transfer", self.tools.transfer, data, source, watch, command=self.command)

    def session(self, watch: Watch) -> None:
        """Sessions with a sketch of what came before."""
        data, source = self.items()
        if data.lengths.max() <= LENGTH:
            raise DataError(
                f"{data.name}: no history is longer than a session of {LENGTH}; there is nothing "
                "to keep a sketch of"
            )
        self._fill("session", self.tools.session, data, source, watch, command=self.command)

    def gradients(self, watch: Watch) -> None:
        """How true the gradients of the paper's network are, in its first run of size 4."""
        run = self._run("dips")
        members = read_split(run)["train"]
        users = [user for user in range(self.data.users) if self.data.user_id(user) in members]

        def follow(done: int, total: int) -> None:
            watch(Update("gradients", done, total, things="steps"))

        self.tools.gradients(run, self.data.select(users), **self.plan.gradients, watch=follow)

    def story(self, watch: Watch) -> None:
        """A user who tests the first learned run of size 4, with a history of the usual length."""
        watch(Update("story", 0, 1, things="users"))
        run = self._run("learned")
        user = of_length(self.data, read_split(run)["test"], TOLD)
        told = self.tools.story(run, user, self.data).last(TOLD)
        with written(self.out / STORY) as part:
            part.write_text(story_page(told), encoding="utf-8")

    def whole(self) -> tuple[Interactions, str]:
        """The data that is compared, and where it can be read again."""
        if not self.plan.longest:
            return self.data, self.source
        return self._kept("", lambda: self.data)

    def items(self) -> tuple[Interactions, str]:
        """The same without ratings: of stars only likes are left."""
        if not self.data.explicit:
            return self.whole()
        return self._kept("-implicit", lambda: as_items(self.data))

    def _kept(self, ending: str, make: Callable[[], Interactions]) -> tuple[Interactions, str]:
        """Data that is made once, and lies beside its results from then on; named by its source."""
        cut = f"-first-{self.plan.longest}" if self.plan.longest else ""
        name = f"{self.data.name}{cut}{ending}-{mark(self.data)}"
        place = self.out / f"{name}.safetensors"
        if not place.exists():
            prepared.write(make(), place)
        return prepared.open_prepared(place), str(place)

    def scale(self) -> str:
        """How much of everything there is, in words."""
        users, everyone, longest = self._users(), self.data.users, self.plan.longest
        epochs = self.plan.settings.get("epochs")
        told = [
            f"{users:,} of {everyone:,} users" if users < everyone else f"{users:,} users",
            *([f"the first {longest} of their interactions"] if longest else []),
            _counted(len(self.plan.seeds), "split"),
            f"up to {epochs} epoch{'s' if epochs > 1 else ''}"
            if epochs
            else "epochs as suit each policy",
        ]
        is_small = users < everyone or longest or epochs
        return ", ".join(told) + (SMALL if is_small else "")

    def turned(self) -> str:
        """What was done to predict items, in words."""
        if not self.data.explicit:
            return "the data has no ratings: every interaction counts"
        return by_name("implicit").about if has_stars(self.data) else "every rating counts"

    def _table(self, name: str, run: Callable[[Watch], None]) -> Stage:
        """A stage that fills a grid of cells, in a directory of its name."""
        grid = self.plan.grids[name]
        plan = {"data": self.source, **asdict(grid), "seeds": self.plan.seeds}
        rows = self._rows() * len(self.plan.seeds)
        cells = rows * len(grid.sizes) * len(grid.every)
        policies = cells * sum(self._effort(policy) for policy in grid.policies)
        one = rows * self._config("last").epochs
        costs = {
            "compare": {"training": policies},
            "transfer": {"gru": one, "policies": policies, "reading sketches": one},
            "session": {"policies": policies, "session models": one * len(grid.sizes) * 2},
        }
        return Stage(
            name=name,
            plan={**plan, "settings": self._settings()},
            costs=costs[name],
            leaves=self.out / name / "figure.png",
            run=run,
            scale=self.scale(),
        )

    def _fill(
        self,
        name: str,
        tool: Callable[..., Any],
        data: Interactions,
        source: str,
        watch: Watch,
        **more: Any,
    ) -> None:
        grid, place = self.plan.grids[name], self.out / name
        tool(
            data, grid.policies, grid.sizes, seeds=self.plan.seeds, out=place, watch=watch,
            source=source, recipe=self.plan.recipe, **more, **self.plan.settings,
        )  # fmt: skip
        self.note(place)

    def _run(self, policy: str) -> Path:
        cell = Cell(policy, 4, 1)
        return self.out / "compare" / "runs" / name_of(cell, self.plan.seeds[0])

    def _config(self, policy: str) -> TrainConfig:
        flags = {**self.plan.settings, "policy": policy}
        return build_config(self.plan.recipe, flags=flags, implicit_data=not self.data.explicit)

    def _settings(self) -> dict[str, Any]:
        """What decides results."""
        kept = {name: value for name, value in self.plan.settings.items() if name != "device"}
        return {"longest": self.plan.longest, "recipe": self.plan.recipe, **kept}

    def _rows(self) -> float:
        """Interactions that take part, about."""
        return float(self.data.lengths.mean()) * self._users()

    def _users(self) -> int:
        return min(self.plan.settings.get("max_users") or self.data.users, self.data.users)

    def _effort(self, policy: str) -> float:
        config = self._config(policy)
        return EFFORT.get(policy, 1.0) * config.epochs * (STEPWISE if config.stretch else 1.0)


def verdict(place: Path) -> str:
    """What a comparison that lies in a directory comes to."""
    (found,) = read_results([place]).comparisons
    return Table(found.rows, found.summary, found.paired).verdict()


def first(data: Interactions, longest: int) -> Interactions:
    """The beginnings of all histories; 0 for all of them."""
    if not longest:
        return data
    return replace(data, lengths=np.minimum(data.lengths, longest))


def mark(data: Interactions) -> str:
    """A few letters that differ where items, ratings or lengths do."""
    found = 0
    for column in (data.item, data.rating, data.lengths):
        if column is not None:
            found = zlib.crc32(np.ascontiguousarray(column).data, found)
    return f"{found:08x}"


def has_stars(data: Interactions) -> bool:
    """Whether ratings are stars as MovieLens and Amazon have them: up to five."""
    low, high = STARS
    return low < data.rating_range()[1] <= high


def as_items(data: Interactions) -> Interactions:
    """Data with ratings, turned implicit: likes among stars; of other ratings everything."""
    kept = by_name("implicit")(data) if has_stars(data) else replace(data, rating=None)
    facts = {name: value for name, value in kept.about.items() if name != "rating_range"}
    return replace(kept, about={**facts, "name": f"{data.name}-implicit"})


def of_length(data: Interactions, users: set[str], length: int) -> str:
    """Of these users the first one whose history is nearest to a length."""
    rows = [user for user in range(data.users) if data.user_id(user) in users]
    return data.user_id(rows[int(np.abs(data.lengths[rows] - length).argmin())])


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
