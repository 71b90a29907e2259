"""Run stages one after the other, resume them, and estimate the remaining time.

Knows nothing about what a stage computes. A JSON journal records the state and the time of each
stage. A stage that the data does not allow is skipped with a reason; the others still run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dips.errors import DipsError, RunError
from dips.studies.progress import StudyCallback, StudyProgress
from dips.studies.run_directory import read_json, write_json

MEASURED_SHARE = 0.1
"""Share of a phase after which its remaining time is extrapolated from its own speed."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a study."""

    name: str
    plan: Mapping[str, Any]
    """Values that determine its result. A stage with another plan is run again."""
    costs: Mapping[str, float]
    """Expected relative cost of each of its phases, by name."""
    output: Path
    """File that exists when the stage is done."""
    run: Callable[[StudyCallback], None]
    needs: tuple[Stage, ...] = ()
    """Stages that must be done first."""
    scale: str = ""
    """Size of the study in words: users, splits, epochs."""


@dataclass
class PhaseTime:
    """Time that a phase of a stage has taken, and the share of the phase that is done."""

    seconds: float = 0.0
    share: float = 0.0


@dataclass
class StageRecord:
    """State and time of a stage, as the journal holds them."""

    state: str = "open"
    """open, done or skipped; `why` says why it was skipped."""
    why: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    scale: str = ""
    parts: dict[str, PhaseTime] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Return the time of all phases."""
        return sum(part.seconds for part in self.parts.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "seconds": self.seconds}


@dataclass(frozen=True)
class StageProgress:
    """Progress of all stages."""

    number: int
    """Place of the running stage, from 1."""
    stages: int
    """Number of stages."""
    stage: str
    study: StudyProgress
    """Progress of the running stage."""
    seconds_left: float | None
    """Estimate for all stages; None until something was measured."""


class Journal:
    """State of every stage, in one JSON file.

    Args:
        path: The file; it is read if it exists.
        about: Further entries of the file; `data` must agree with an existing file.

    Raises:
        RunError: If the file is about other data.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.about = path, dict(about)
        self.entries: dict[str, StageRecord] = {}
        self.new: dict[str, StageRecord] = {}
        """Records of stages with a changed plan; `commit` replaces the old record."""
        if not path.exists():
            return
        found = read_json(path)
        if found.get("data") != about["data"]:
            raise RunError(
                f"{path.parent} is about {found.get('data')}, not {about['data']}: give --out "
                "another directory"
            )
        for name, entry in found["stages"].items():
            parts = {part: PhaseTime(**spent) for part, spent in entry["parts"].items()}
            self.entries[name] = StageRecord(
                entry["state"], entry["why"], entry["plan"], entry["scale"], parts
            )

    def of(self, stage: Stage) -> StageRecord:
        """Return the record of a stage; a new one if its plan changed."""
        known = self.entries.get(stage.name)
        if known is not None and not self.changed_plan(stage):
            return known
        return self.new.setdefault(
            stage.name, StageRecord(plan=_plain(stage.plan), scale=stage.scale)
        )

    def changed_plan(self, stage: Stage) -> str:
        """Return the names of the values in which the recorded plan differs; empty if in none."""
        known = self.entries.get(stage.name)
        return "" if known is None else _differing(known.plan, _plain(stage.plan))

    def commit(self, stage: Stage) -> None:
        """Replace the recorded plan of a stage by the current one."""
        self.entries[stage.name] = self.of(stage)
        self.new.pop(stage.name, None)

    def is_done(self, stage: Stage) -> bool:
        """Return whether a stage is done and its output exists."""
        return self.of(stage).state == "done" and stage.output.exists()

    def reopen(self, stage: Stage) -> None:
        """Mark a stage as open; if its output is missing, reset its times."""
        entry = self.of(stage)
        if entry.state == "done":
            entry.parts = {}
        entry.state, entry.why = "open", ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        stages = {name: entry.to_dict() for name, entry in self.entries.items()}
        return {**self.about, "stages": stages}

    def write(self) -> None:
        """Write the file."""
        write_json(self.to_dict(), self.path)


def run_stages(
    stages: Sequence[Stage],
    journal: Journal,
    on_progress: Callable[[StageProgress], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the stages that are not done, and write the journal after each, also on an error.

    Args:
        stages: Stages in order.
        journal: Their recorded states.
        on_progress: Called with the progress of all stages.
        clock: Returns seconds.

    Raises:
        RunError: If results of another plan are in a stage's directory. Its record is not changed.
    """
    open_stages = [stage for stage in stages if not journal.is_done(stage)]
    for stage in open_stages:
        journal.reopen(stage)
    for stage in open_stages:
        number = stages.index(stage) + 1
        timer = _StageTimer(journal.of(stage), clock)

        def report(study: StudyProgress, stage: Stage = stage, number: int = number) -> None:
            left = seconds_left(stages, journal)
            on_progress(StageProgress(number, len(stages), stage.name, study, left))

        report(StudyProgress("beginning", 0, 1, unit="phases"))
        is_refused = False
        try:
            _run_stage(stage, journal, timer.timed(report))
        except RunError:
            is_refused = bool(journal.changed_plan(stage))
            raise
        finally:
            timer.stop()
            if not is_refused:
                journal.commit(stage)
                journal.write()


def _run_stage(stage: Stage, journal: Journal, on_progress: StudyCallback) -> None:
    """Run one stage, or record why it is skipped."""
    entry = journal.of(stage)
    for need in stage.needs:
        if other := journal.changed_plan(need):
            raise RunError(
                f"{stage.name} needs the results of {need.name}, which was run with other settings "
                f"({other}): give the same settings, or --out another directory"
            )
        if journal.of(need).state != "done":
            entry.state = "skipped"
            entry.why = f"it needs the results of {need.name}, which is not done"
            return
    try:
        stage.run(on_progress)
    except RunError:  # its directory holds other results, which must not be mixed with these
        raise
    except DipsError as error:
        entry.state, entry.why = "skipped", str(error)
    else:
        entry.state, entry.why = "done", ""


def _plain(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan as JSON would return it."""
    plain: dict[str, Any] = json.loads(json.dumps(plan))
    return plain


def _differing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the names of differing values, also inside nested values."""
    names = []
    for name in [*wanted, *(name for name in found if name not in wanted)]:
        old, new = found.get(name), wanted.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names.append(_differing(old, new))
        elif old != new:
            names.append(name)
    return ", ".join(filter(None, names))


class _StageTimer:
    """Records the time of each phase of a stage."""

    def __init__(self, entry: StageRecord, clock: Callable[[], float]) -> None:
        self.entry, self.clock, self.last = entry, clock, clock()
        self.phase, self.share_before = "", 0.0

    def timed(self, on_progress: StudyCallback) -> StudyCallback:
        """Return a callback that records the time and then calls the given one."""

        def record(study: StudyProgress) -> None:
            self._record(study)
            on_progress(study)

        return record

    def stop(self) -> None:
        """Record the end of the stage, also after an error."""
        if self.phase:
            self._charge()
        if self.entry.state == "done":
            for spent in self.entry.parts.values():
                spent.share = 1.0

    def _record(self, study: StudyProgress) -> None:
        """Record time and share of a phase; a report counts what was missing when it began."""
        parts = self.entry.parts
        if study.phase != self.phase:
            if self.phase:
                parts[self.phase].share = 1.0
            self.phase = study.phase
            self.share_before = parts.setdefault(self.phase, PhaseTime()).share
        self._charge()  # time before the first report of a phase belongs to it
        done = min(study.done / study.total, 1.0) if study.total else 1.0
        parts[self.phase].share = self.share_before + (1 - self.share_before) * done

    def _charge(self) -> None:
        now = self.clock()
        self.entry.parts[self.phase].seconds += now - self.last
        self.last = now


def seconds_left(stages: Iterable[Stage], journal: Journal) -> float | None:
    """Estimate the remaining seconds of all open stages; None until something was measured.

    A phase of which `MEASURED_SHARE` is done is extrapolated from its own speed. The others take
    their cost times the seconds per unit of cost of all that was done, earlier calls included.
    """
    parts = [
        (cost, entry.parts.get(phase, PhaseTime()), entry.state == "open")
        for stage in stages
        for entry in [journal.of(stage)]
        for phase, cost in stage.costs.items()
    ]
    took = sum(spent.seconds for _, spent, _ in parts)
    paid = sum(cost * spent.share for cost, spent, _ in parts)
    if not took or not paid:
        return None
    return sum(
        spent.seconds * (1 / spent.share - 1)
        if spent.share >= MEASURED_SHARE
        else cost * (1 - spent.share) * took / paid
        for cost, spent, is_open in parts
        if is_open
    )
