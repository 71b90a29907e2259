"""Events as lines of JSON: batches from a pipe, acknowledgements out, bad lines to a file.

An acknowledgement says that everything up to a line is durable; whoever is killed before one
arrives sends the lines after the last one again.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, final

from dips.serve.admission import Refusal, Tally
from dips.serve.batches import Batch
from dips.serve.events import LONGEST_LINE, Event, EventError, read_line
from dips.serve.keeper import Keeper
from dips.serve.stores.base import StoreError

PIECE = 1 << 16
PIPE = 1 << 20
"""Bytes that a pipe holds while a batch is decided, so that the next one need not be waited for."""


def batches(source: int, batch: int, linger: float) -> Iterator[list[bytes]]:
    """Lines from a file descriptor, at most `batch` at a time.

    The first line of a batch is waited for, the others for `linger` seconds. Before it waits it
    says so by no lines at all. A line that is too long is cut off after one byte too much, so that
    it is refused and takes no memory.
    """
    held, partial, done = list[bytes](), b"", False
    with suppress(OSError, AttributeError):  # a file, which is always there; or not Linux
        fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, PIPE)
    while not done or held:
        until, said = monotonic() + linger, False
        while not done and len(held) < batch:
            if not said and not select.select([source], [], [], 0.0)[0]:
                said = True
                yield []
            wait = None if not held else max(0.0, until - monotonic())
            if not select.select([source], [], [], wait)[0]:
                break
            if not held:
                until = monotonic() + linger
            piece = os.read(source, PIECE)
            done = not piece
            *lines, partial = (partial + piece).split(b"\n")
            partial = partial[: LONGEST_LINE + 1]
            held += lines + ([partial] if done and partial else [])
        if held:
            yield held[:batch]
            held = held[batch:]


@final
class DeadLetters:
    """A file of bad lines, each with the reason; on the disk before the rest of the batch is."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, letters: Iterable[tuple[int, str, bytes]]) -> None:
        """Append (line number, reason, line)."""
        found = [
            {"line": number, "reason": reason, "event": text.decode(errors="replace")}
            for number, reason, text in letters
        ]
        if not found:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(b"".join(json.dumps(letter).encode() + b"\n" for letter in found))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"{self.path}: bad events cannot be written there ({error})") from None


@dataclass(frozen=True)
class Acknowledgement:
    """Everything up to this line is durable; what became of the lines since the one before."""

    lines: int
    tally: Tally

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"lines": self.lines, **self.tally.counts()}


def follow(
    keeper: Keeper, source: Iterable[list[bytes]], dead: DeadLetters, name: str | None = None
) -> Iterator[Acknowledgement]:
    """Apply batches of lines; one acknowledgement for each when it is durable.

    That is while the next one is decided, or at once where the source has no lines for now. With a
    `name` the store remembers how many lines of that source it has, and skips them when the source
    is given again from its start.
    """
    skip = 0 if name is None else keeper.mark(name)
    underway = deque[tuple[int, list[Refusal]]]()

    def read_batches() -> Iterator[Batch | None]:
        read = 0
        for lines in source:
            first, read = read, read + len(lines)
            if not lines:
                yield None
            elif read > skip:
                fresh = enumerate(lines[max(0, skip - first) :], start=max(first, skip) + 1)
                marks = {} if name is None else {name: read}
                batch, bad = _parsed(list(fresh), dead, marks)
                underway.append((read, bad))
                yield batch

    for tally in keeper.follow(read_batches()):
        read, bad = underway.popleft()
        tally.refused += bad
        yield Acknowledgement(read, tally)


def _parsed(
    lines: list[tuple[int, bytes]], dead: DeadLetters, marks: dict[str, int]
) -> tuple[Batch, list[Refusal]]:
    """The events of some lines, and the lines that have none."""
    events: list[Event] = []
    bad: list[tuple[int, str, bytes]] = []
    origin: dict[int, tuple[int, bytes]] = {}
    for number, line in lines:
        if not line.strip():
            continue
        try:
            event = read_line(line)
        except EventError as error:
            bad.append((number, str(error), line))
            continue
        events.append(event)
        origin[id(event)] = number, line

    def refuse(found: Sequence[Refusal]) -> None:
        late = [(origin[id(event)][0], why, origin[id(event)][1]) for event, why in found]
        dead.write(sorted([*bad, *late]))

    return Batch(events, marks, refuse), [(line, reason) for _, reason, line in bad]
