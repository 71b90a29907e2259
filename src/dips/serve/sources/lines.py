"""Read events as JSON lines from a pipe or a file, and acknowledge what is durable.

An acknowledgement says that all lines up to a number are durable. After a crash the sender repeats
the lines after the last acknowledgement.
"""

from __future__ import annotations

import fcntl
import os
import select
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from time import monotonic

from dips.serve.admission import CommitResult, RefusedEvent
from dips.serve.batches import EventBatch
from dips.serve.dead_letters import DeadLetters
from dips.serve.events import MAX_LINE_BYTES, Event, EventError, parse_line
from dips.serve.keeper import Keeper

READ_BYTES = 1 << 16
"""Most bytes of one read."""
PIPE_BYTES = 1 << 20
"""Capacity of the pipe: the sender can go on while a batch is applied."""


def read_lines(source: int, batch: int, linger: float) -> Iterator[list[bytes]]:
    """Read lines from a file descriptor in batches.

    A line that is too long is cut to one byte above the limit. So it will be refused, and it takes
    no memory.

    Args:
        source: File descriptor of a pipe or a file.
        batch: Most lines in a batch.
        linger: Most seconds to wait for further lines after the first one of a batch.

    Returns:
        Batches of lines. An empty batch is yielded before each wait for a line.
    """
    held, partial, done = list[bytes](), b"", False
    with suppress(OSError, AttributeError):  # a file has no capacity; the option exists on Linux
        fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    while not done or held:
        until, announced = monotonic() + linger, False
        while not done and len(held) < batch:
            if not announced and not select.select([source], [], [], 0.0)[0]:
                announced = True
                yield []
            wait = None if not held else max(0.0, until - monotonic())
            if not select.select([source], [], [], wait)[0]:
                break
            if not held:
                until = monotonic() + linger
            content = os.read(source, READ_BYTES)
            done = not content
            *lines, partial = (partial + content).split(b"\n")
            partial = partial[: MAX_LINE_BYTES + 1]
            held += lines + ([partial] if done and partial else [])
        if held:
            yield held[:batch]
            held = held[batch:]


def stream_lines(
    keeper: Keeper,
    batches: Iterable[list[bytes]],
    dead_letters: DeadLetters,
    source: str | None = None,
) -> Iterator[tuple[int, CommitResult]]:
    """Apply batches of lines with a keeper, one commit each.

    Args:
        keeper: The keeper to apply the events with.
        batches: Batches of lines. An empty batch means that no lines are available at the moment:
            then the commit in flight is acknowledged before the next batch is taken.
        dead_letters: File for invalid lines.
        source: Name of the input. With a name the store keeps the number of durable lines, and
            skips them when the input is read again from its start.

    Returns:
        For each durable commit the number of lines up to its end, and what became of its events.

    Raises:
        StoreError: A commit failed. Durable commits are acknowledged first.
    """
    skipped = 0 if source is None else keeper.offset(source)
    in_flight = deque[int]()

    def parse_batches() -> Iterator[EventBatch | None]:
        end = 0
        for lines in batches:
            start, end = end, end + len(lines)
            if not lines:
                yield None
            elif end > skipped:
                new = enumerate(lines[max(0, skipped - start) :], start=max(start, skipped) + 1)
                offsets = {} if source is None else {source: end}
                in_flight.append(end)
                yield _parse(list(new), dead_letters, offsets)

    for result in keeper.process(parse_batches()):
        yield in_flight.popleft(), result


def _parse(
    lines: list[tuple[int, bytes]], dead_letters: DeadLetters, offsets: dict[str, int]
) -> EventBatch:
    """Return the events of numbered lines as a batch, with the lines that are no events."""
    events: list[Event] = []
    invalid: list[tuple[int, str, bytes]] = []
    origin: dict[int, tuple[int, bytes]] = {}
    for number, line in lines:
        if not line.strip():
            continue
        try:
            event = parse_line(line)
        except EventError as error:
            invalid.append((number, str(error), line))
            continue
        events.append(event)
        origin[id(event)] = number, line

    def write_dead_letters(refused: Sequence[RefusedEvent]) -> None:
        later = [(origin[id(event)][0], why, origin[id(event)][1]) for event, why in refused]
        dead_letters.write(sorted([*invalid, *later]))

    refused = [RefusedEvent(line, reason) for _, reason, line in invalid]
    return EventBatch(events, offsets, write_dead_letters, refused)
