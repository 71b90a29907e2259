"""Progress as lines of text: for Python, and for commands without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from dips.report.markup import format_seconds
from dips.studies.progress import EpochReport, StudyProgress, TrainingReport

LINE_SECONDS = 5.0
"""Least time between two lines of progress."""
Print = Callable[[str], None]


class TimeLeft:
    """Extrapolates how long work still takes from how long the part that is done took."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def text(self, done: float, total: float) -> str:
        """Return ', 2:05 min left'; empty at the beginning and at the end.

        Args:
            done: Work that is done.
            total: All work, in the same unit.
        """
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
        began, before = self._first
        if not before < done < total or now == began:
            return ""
        return f", {format_seconds((now - began) * (total - done) / (done - before))} left"


class TrainingLines:
    """Prints a line after each epoch, and one every `LINE_SECONDS` within epochs."""

    def __init__(self, write: Print | None = None, *, every_epoch: bool = True) -> None:
        """Start a training.

        Args:
            write: Prints a line; by default on standard error.
            every_epoch: Whether each epoch has its line, however fast they follow each other.
        """
        self._write, self._every_epoch = write or _on_standard_error, every_epoch
        self._left, self._last = TimeLeft(), time.monotonic()

    def __call__(self, report: TrainingReport) -> None:
        """Print a line if it is time for one."""
        left = self._left.text(report.done, report.total)
        is_due = time.monotonic() - self._last >= LINE_SECONDS
        if is_due or (self._every_epoch and isinstance(report, EpochReport)):
            self._last = time.monotonic()
            self._write(f"epoch {report.epoch} of {report.epochs}{describe(report)}{left}")


def describe(report: TrainingReport) -> str:
    """Return how far the epoch has come, or its validation, and the speed."""
    rate = f"{report.interactions_per_second / 1000:.0f}K interactions/s"
    role = f"{report.role}, " if report.role else ""
    if isinstance(report, EpochReport):
        return f": {role}validation {abs(report.valid[0]):.4f}, {rate}"
    return f" ({100 * (report.done % 1 or 1):.0f} %): {role}{rate}"


class StudyLines:
    """Prints a line every `LINE_SECONDS`, and one at the end of a phase."""

    def __init__(self, write: Print | None = None, *, every_phase: bool = True) -> None:
        """Start a study.

        Args:
            write: Prints a line; by default on standard error.
            every_phase: Whether the end of each phase has its line, however fast it was.
        """
        self._write, self._every_phase = write or _on_standard_error, every_phase
        self._left: dict[str, TimeLeft] = {}
        self._last = time.monotonic()

    def __call__(self, study: StudyProgress) -> None:
        """Print a line if it is time for one."""
        left = self._left.setdefault(study.phase, TimeLeft()).text(study.done, study.total)
        ended = self._every_phase and study.done == study.total
        if time.monotonic() - self._last >= LINE_SECONDS or ended:
            self._last = time.monotonic()
            self._write(f"{study.phase}: {study.done:.0f} of {study.total} {study.unit}{left}")


def _on_standard_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
