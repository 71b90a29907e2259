"""Write a commit in a thread, while the next batch is applied in memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from dips.serve.admission import CommitResult
from dips.serve.batches import LoadedBatch


@dataclass(frozen=True, eq=False)
class InFlightCommit:
    """A commit that may not be durable yet."""

    done: Future[None]
    """Resolves when the commit is durable; holds the error where it failed."""
    roll_back: Callable[[], None]
    """Removes the commit's changes from memory; called where it failed."""
    result: CommitResult
    """What became of its events; valid once the commit is durable."""
    next_batch: LoadedBatch | None
    """The batch after it, loaded with this commit's changes applied."""


@final
class CommitWriter:
    """Thread that writes commits. At most one commit is in flight."""

    def __init__(self) -> None:
        self._commit: InFlightCommit | None = None
        self._thread = ThreadPoolExecutor(1, "commits")

    def submit(
        self,
        write: Callable[[], None],
        roll_back: Callable[[], None],
        result: CommitResult,
        load_next: Callable[[], LoadedBatch | None],
    ) -> InFlightCommit:
        """Load the next batch, then write a staged commit in the thread.

        Args:
            write: Writes the staged change; returned by `Store.stage`.
            roll_back: Removes the commit's changes from memory; called if it fails.
            result: What became of the events of the commit.
            load_next: Loads the next batch, or returns None. If it raises, the batch is loaded
                again when it is its turn.

        Returns:
            The commit in flight.
        """
        next_batch = None
        try:
            with suppress(Exception):  # not an error of this commit
                next_batch = load_next()
        finally:  # a staged change must always be written
            done = self._thread.submit(write)
            self._commit = commit = InFlightCommit(done, roll_back, result, next_batch)
        return commit

    def prefetched(self, commit: InFlightCommit | None) -> LoadedBatch | None:
        """Return the batch loaded after a commit, if no other caller has written since."""
        return commit.next_batch if commit is not None and commit is self._commit else None

    def wait(self) -> None:
        """Wait until no commit is in flight; roll memory back where the commit failed."""
        commit = self._commit
        if commit is not None:
            failed = commit.done.exception() is not None
            self._commit = None
            if failed:
                commit.roll_back()

    def close(self) -> None:
        """Wait for the commit in flight, and end the thread."""
        self.wait()
        self._thread.shutdown()
