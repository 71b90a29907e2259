"""A commit that is written in a thread of its own, while the next batch is decided."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from dips.serve.admission import Tally
from dips.serve.batches import Opened


@dataclass(frozen=True, eq=False)
class Flight:
    """A commit on its way to the disk."""

    done: Future[None]
    undo: Callable[[], None]
    """Forget what it says, if it fails."""
    tally: Tally
    """What became of its events, once it is there."""
    opened: Opened | None
    """The batch after it, read as it leaves the store."""


@final
class Underway:
    """The commit on its way, of which there is one at most."""

    def __init__(self) -> None:
        self.flight: Flight | None = None
        self._thread = ThreadPoolExecutor(1, "commits")

    def send(
        self,
        end: Callable[[], None],
        undo: Callable[[], None],
        tally: Tally,
        read: Callable[[], Opened | None],
    ) -> Flight:
        """Read what comes next, as this commit leaves it, and do its second half in the thread."""
        opened = None
        try:
            with suppress(Exception):  # is no fault of this commit: it is read again in its turn
                opened = read()
        finally:  # what is staged is ended, whatever happens
            self.flight = flight = Flight(self._thread.submit(end), undo, tally, opened)
        return flight

    def opened(self, before: Flight | None) -> Opened | None:
        """The batch that was read for whoever sent this commit, if nobody has been here since."""
        return before.opened if before is not None and before is self.flight else None

    def rounding(self) -> None:
        """Wait for the commit; where it fails, nothing of it stays in memory."""
        flight = self.flight
        if flight is not None:
            failed = flight.done.exception() is not None
            self.flight = None
            if failed:
                flight.undo()

    def close(self) -> None:
        """Let go of the thread."""
        self.rounding()
        self._thread.shutdown()
