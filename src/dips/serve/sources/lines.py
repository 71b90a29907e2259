"""Apply events in JSON lines, and acknowledge what is durable.

An acknowledgement says that all lines up to a number are durable. After a crash the sender repeats
the lines after the last acknowledgement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from dips.serve.admission import CommitResult, RefusedEvent
from dips.serve.batches import EventBatch
from dips.serve.dead_letters import DeadLetters
from dips.serve.events import Event, EventError, parse_line
from dips.serve.keeper import Keeper
from dips.serve.sources.source_progress import SourceProgress


def stream_lines(
    keeper: Keeper,
    batches: Iterable[list[bytes]],
    dead_letters: DeadLetters,
    source: str | None = None,
    *,
    is_file: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, CommitResult]]:
    """Apply batches of lines with a keeper, one commit each.

    Args:
        keeper: The keeper to apply the events with.
        batches: Batches of lines. An empty batch means that no lines are available at the moment:
            then the commit in flight is acknowledged before the next batch is taken.
        dead_letters: File for invalid lines.
        source: Name of the log that the input belongs to. With a name, the durable lines of an
            input are skipped when it is read again from its start (`SourceProgress`).
        is_file: Whether the input is a file, not a pipe.
        is_stopped: Whether the batches ended before the input did.

    Returns:
        For each durable commit the number of lines up to its end, and what became of its events.

    Raises:
        DataError: The input is not the one that was read under this name.
        StoreError: A commit failed. Durable commits are acknowledged first.
    """
    progress = SourceProgress(source, keeper.offset, is_file=is_file)
    in_flight = deque[int]()

    def parse_batches() -> Iterator[EventBatch | None]:
        for lines in batches:
            before, new = progress.new_lines(lines)
            if not lines:
                yield None
            elif new:
                numbered = list(enumerate(new, start=before + 1))
                in_flight.append(before + len(new))
                yield _parse(numbered, dead_letters, progress.offsets())
        if not is_stopped():
            progress.finish()

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
