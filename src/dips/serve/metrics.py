"""Count what a keeper does, and show it in the text format of Prometheus."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import final

from dips.data.atomic_write import atomic_write
from dips.errors import DataError
from dips.serve.admission import CommitResult

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the commit latency histogram, in seconds."""
FILE_SECONDS = 5.0
"""Seconds between two writes of the metrics file."""


@final
class Metrics:
    """Counters of a keeper since it was opened. Thread-safe.

    Example:
        >>> metrics = Metrics()
        >>> metrics.measured(lambda: None, CommitResult(applied=2, repeated=1), None)()
        >>> metrics.events["applied"], metrics.commits
        (2, 1)
    """

    def __init__(self) -> None:
        self.events = CommitResult().counts()
        """Events of durable commits, by what became of them."""
        self.failed_commits = 0
        self.commit_seconds = 0.0
        """Sum of the latencies of all commits."""
        self.lag_seconds: float | None = None
        """Seconds from the time of the newest event of the last commit to that commit."""
        self.last_commit = 0.0
        """Time of the last commit, in seconds since 1970; 0 where there was none."""
        self._counts = [0] * (len(BUCKETS) + 1)
        self._lock = threading.Lock()

    @property
    def commits(self) -> int:
        """Number of durable commits of events."""
        return sum(self._counts)

    def measured(
        self, write: Callable[[], None], result: CommitResult, newest: int | None
    ) -> Callable[[], None]:
        """Return a function that writes a commit, measures it, and counts its events.

        Args:
            write: Writes the commit.
            result: What became of the events of the commit.
            newest: Time of the newest event, in seconds since 1970; None without times.
        """

        def write_and_count() -> None:
            began = time.perf_counter()
            try:
                write()
            except BaseException:
                with self._lock:
                    self.failed_commits += 1
                raise
            self._count(time.perf_counter() - began, result, newest)

        return write_and_count

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        with self._lock:
            buckets = zip([*map(str, BUCKETS), "+Inf"], accumulate(self._counts), strict=True)
            parts = [
                _part("events_total", "counter", "Events of durable commits.",
                      {f'{{outcome="{name}"}}': count for name, count in self.events.items()}),
                _part("failed_commits_total", "counter", "Commits that were not written.",
                      {"": self.failed_commits}),
                _part("commit_seconds", "histogram", "Seconds until a commit of events is durable.",
                      {**{f'_bucket{{le="{most}"}}': count for most, count in buckets},
                       "_sum": self.commit_seconds, "_count": self.commits}),
                _part("last_commit_timestamp_seconds", "gauge", "Time of the last commit.",
                      {"": self.last_commit}),
            ]  # fmt: skip
            if self.lag_seconds is not None:
                about = "Seconds from the newest event time of the last commit to that commit."
                parts.append(_part("lag_seconds", "gauge", about, {"": self.lag_seconds}))
        return "".join(parts)

    def _count(self, seconds: float, result: CommitResult, newest: int | None) -> None:
        now = time.time()
        with self._lock:
            self.events = {name: self.events[name] + n for name, n in result.counts().items()}
            self._counts[bisect_left(BUCKETS, seconds)] += 1
            self.commit_seconds += seconds
            self.last_commit = now
            if newest is not None:
                self.lag_seconds = now - newest


@contextmanager
def metrics_file(
    path: Path | None, metrics: Metrics, seconds: float = FILE_SECONDS
) -> Iterator[None]:
    """Write metrics to a file at the start, every few seconds inside the context, and at its end.

    The file is replaced atomically: who reads it sees all of it.

    Args:
        path: The file; None writes nothing.
        metrics: The metrics.
        seconds: Seconds between two writes.

    Raises:
        DataError: The file cannot be written at the start or at the end. In between that is logged.
    """
    if path is None:
        yield
        return
    ended = threading.Event()

    def write() -> None:
        with atomic_write(path) as part:
            part.write_text(metrics.text())

    def write_repeatedly() -> None:
        while not ended.wait(seconds):
            try:
                write()
            except DataError as error:
                logging.getLogger(__name__).warning("%s", error)

    write()
    thread = threading.Thread(target=write_repeatedly, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        write()


def _part(name: str, kind: str, about: str, samples: dict[str, float]) -> str:
    """Return the lines of one metric; a sample is given by what follows the name."""
    head = f"# HELP dips_{name} {about}\n# TYPE dips_{name} {kind}\n"
    return head + "".join(f"dips_{name}{rest} {value}\n" for rest, value in samples.items())
