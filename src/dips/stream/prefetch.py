"""Events that wait in host memory come to the device with those who walk, the next ones in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from dips.stream.users import Stream


def prefetched(user_batches: Iterable[Stream]) -> Iterator[Stream]:
    """Each company at home with its events; those of the next are gathered while it walks.

    Another thread gathers, in host memory alone: it must not call a device on which a graph may be
    recorded at that time. What is gathered then crosses the bus in a small part of a second.
    """
    with ThreadPoolExecutor(1) as hand:
        coming = deque[Future[Stream]]()
        for user_batch in user_batches:
            coming.append(hand.submit(user_batch.gathered))
            if len(coming) > 1:
                yield coming.popleft().result().on_device()
        for last in coming:
            yield last.result().on_device()
