"""Bring the events of user batches from host memory to the device, the next batch in advance."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from dips.stream.users import Stream


def prefetch_batches(user_batches: Iterable[Stream]) -> Iterator[Stream]:
    """Yield each user batch with its events on the device.

    The events of the next batch are gathered meanwhile, by another thread and in host memory only:
    it must not call a device on which a graph may be captured at that time.

    Args:
        user_batches: User batches whose events may be in host memory.
    """
    with ThreadPoolExecutor(1) as executor:
        pending = deque[Future[Stream]]()
        for user_batch in user_batches:
            pending.append(executor.submit(user_batch.gather_events))
            if len(pending) > 1:
                yield pending.popleft().result().to_device()
        for last in pending:
            yield last.result().to_device()
