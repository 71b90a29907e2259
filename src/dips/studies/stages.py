"""Work in stages: one after the other, gone on with where it stopped, and how long it will take.

Knows nothing of what a stage does. A journal says what is done, and what it took; a stage that
cannot run says why, and the others go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dips.errors import DipsError, RunError
from dips.studies.compare import Update, Watch
from dips.studies.run_directory import read_json, write_json

ENOUGH = 0.1
"""The share of a part after which its own pace is believed."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One thing to do."""

    name: str
    plan: Mapping[str, Any]
    """What decides its result, as plain values: with another plan it is run again."""
    costs: Mapping[str, float]
    """What its parts are expected to cost, by the names that its updates give them."""
    leaves: Path
    """What is there when it is done."""
    run: Callable[[Watch], None]
    needs: tuple[Stage, ...] = ()
    """Stages that must be done before."""
    scale: str = ""
    """How much of everything there is, in words."""


@dataclass
class Spent:
    """What a part of a stage took so far, and how much of it that was."""

    seconds: float = 0.0
    share: float = 0.0


@dataclass
class Entry:
    """What the journal says of a stage."""

    state: str = "open"
    """open, done, or skipped: then `why` is a sentence."""
    why: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    scale: str = ""
    parts: dict[str, Spent] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """What the stage took."""
        return sum(part.seconds for part in self.parts.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "seconds": self.seconds}


@dataclass(frozen=True)
class Progress:
    """How far everything is."""

    place: int
    stages: int
    stage: str
    update: Update
    seconds_left: float | None
    """Of all stages; None while nothing is known."""


class Journal:
    """What is known of every stage, in one JSON file."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.about = path, dict(about)
        self.entries: dict[str, Entry] = {}
        self.new: dict[str, Entry] = {}
        """Of stages with another plan than the file's: until one is settled, the old one holds."""
        if not path.exists():
            return
        found = read_json(path)
        if found.get("data") != about["data"]:
            raise RunError(
                f"{path.parent} is about {found.get('data')}, not {about['data']}: give --out "
                "another directory"
            )
        for name, told in found["stages"].items():
            parts = {part: Spent(**spent) for part, spent in told["parts"].items()}
            scale = told.get("scale", found.get("scale", ""))  # once it was the same for all
            self.entries[name] = Entry(told["state"], told["why"], told["plan"], scale, parts)

    def of(self, stage: Stage) -> Entry:
        """What is known of a stage; with another plan it is as good as new."""
        known = self.entries.get(stage.name)
        if known is not None and not self.another(stage):
            return known
        return self.new.setdefault(stage.name, Entry(plan=_plain(stage.plan), scale=stage.scale))

    def another(self, stage: Stage) -> str:
        """In what a stage that is known had another plan; empty where it had the same."""
        known = self.entries.get(stage.name)
        return "" if known is None else _differing(known.plan, _plain(stage.plan))

    def rounding(self, stage: Stage) -> None:
        """What is known of a stage now is what counts."""
        self.entries[stage.name] = self.of(stage)
        self.new.pop(stage.name, None)

    def is_done(self, stage: Stage) -> bool:
        """Whether there is nothing left to do."""
        return self.of(stage).state == "done" and stage.leaves.exists()

    def reopen(self, stage: Stage) -> None:
        """There is something to do after all; where its result is gone, everything."""
        entry = self.of(stage)
        if entry.state == "done":
            entry.parts = {}
        entry.state, entry.why = "open", ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        stages = {name: entry.to_dict() for name, entry in self.entries.items()}
        return {**self.about, "stages": stages}

    def write(self) -> None:
        """Keep it."""
        write_json(self.to_dict(), self.path)


def carry_out(
    stages: Sequence[Stage],
    journal: Journal,
    watch: Callable[[Progress], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run what is not done yet; whatever happens, the journal says how far it came.

    A stage that is refused because results of another plan are there leaves the journal as it is.
    """
    ahead = [stage for stage in stages if not journal.is_done(stage)]
    for stage in ahead:
        journal.reopen(stage)
    for stage in ahead:
        place = stages.index(stage) + 1
        pace = _Pace(journal.of(stage), clock)

        def tell(update: Update, stage: Stage = stage, place: int = place) -> None:
            left = seconds_left(stages, journal)
            watch(Progress(place, len(stages), stage.name, update, left))

        tell(Update("beginning", 0, 1, things="parts"))
        is_refused = False
        try:
            _run(stage, journal, pace.noticing(tell))
        except RunError:
            is_refused = bool(journal.another(stage))
            raise
        finally:
            pace.stop()
            if not is_refused:
                journal.rounding(stage)
                journal.write()


def _run(stage: Stage, journal: Journal, tell: Watch) -> None:
    """Run one stage, or note why that cannot be."""
    entry = journal.of(stage)
    for need in stage.needs:
        if other := journal.another(need):
            raise RunError(
                f"{stage.name} goes on from what {need.name} leaves, and {need.name} was run with "
                f"another {other}: give the same, or --out another directory"
            )
        if journal.of(need).state != "done":
            entry.state = "skipped"
            entry.why = f"it goes on from what {need.name} leaves, and {need.name} is not done"
            return
    try:
        stage.run(tell)
    except RunError:  # what stands in its directory must not be mixed with this
        raise
    except DipsError as error:
        entry.state, entry.why = "skipped", str(error)
    else:
        entry.state, entry.why = "done", ""


def _plain(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan as it is read from the file."""
    plain: dict[str, Any] = json.loads(json.dumps(plan))
    return plain


def _differing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The names of what differs, also of what stands in one of the values."""
    names = []
    for name in [*wanted, *(name for name in found if name not in wanted)]:
        old, new = found.get(name), wanted.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names.append(_differing(old, new))
        elif old != new:
            names.append(name)
    return ", ".join(filter(None, names))


class _Pace:
    """Notes what the parts of a stage take."""

    def __init__(self, entry: Entry, clock: Callable[[], float]) -> None:
        self.entry, self.clock, self.last = entry, clock, clock()
        self.part, self.before = "", 0.0

    def noticing(self, tell: Watch) -> Watch:
        """The same, with every update noticed first."""

        def notice(update: Update) -> None:
            self._notice(update)
            tell(update)

        return notice

    def stop(self) -> None:
        """The stage ended, well or not."""
        if self.part:
            self._charge()
        if self.entry.state == "done":
            for spent in self.entry.parts.values():
                spent.share = 1.0

    def _notice(self, update: Update) -> None:
        """An update counts what was missing when its part began: shares of that are added."""
        parts = self.entry.parts
        if update.stage != self.part:
            if self.part:
                parts[self.part].share = 1.0
            self.part = update.stage
            self.before = parts.setdefault(self.part, Spent()).share
        self._charge()  # what came before a part's first update was for it
        done = min(update.done / update.total, 1.0) if update.total else 1.0
        parts[self.part].share = self.before + (1 - self.before) * done

    def _charge(self) -> None:
        now = self.clock()
        self.entry.parts[self.part].seconds += now - self.last
        self.last = now


def seconds_left(stages: Iterable[Stage], journal: Journal) -> float | None:
    """What stages still take: by the pace of a part that is well on its way, else by its cost.

    How many seconds a unit of cost takes is learned from all that was done, in earlier calls too.
    """
    parts = [
        (cost, entry.parts.get(part, Spent()), entry.state == "open")
        for stage in stages
        for entry in [journal.of(stage)]
        for part, cost in stage.costs.items()
    ]
    took = sum(spent.seconds for _, spent, _ in parts)
    paid = sum(cost * spent.share for cost, spent, _ in parts)
    if not took or not paid:
        return None
    return sum(
        spent.seconds * (1 / spent.share - 1)
        if spent.share >= ENOUGH
        else cost * (1 - spent.share) * took / paid
        for cost, spent, is_open in parts
        if is_open
    )
