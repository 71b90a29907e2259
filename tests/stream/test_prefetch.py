"""Events that wait in host memory: user_batches come one after the other, the next in time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch

from dips.data.interactions import Interactions
from dips.stream.prefetch import prefetch_batches
from dips.stream.users import EventColumns, Stream, make_host_stream

World = Callable[..., Interactions]


def _user_batches(stream: Stream, *places: list[int]) -> Iterator[Stream]:
    return (stream.take(torch.tensor([some])) for some in places)


def test_user_batches_come_in_order_with_their_events(world: World) -> None:
    data = world([2, 5, 3, 4])
    waiting = make_host_stream([data], EventColumns.on_host(data, "cpu"))
    first, second = prefetch_batches(_user_batches(waiting, [0, 3], [1, 2]))
    assert (first.length.tolist(), second.length.tolist()) == ([[5, 2]], [[4, 3]])
    assert first.columns.item.tolist() == [*data.item[2:7], *data.item[0:2]]
    assert second.columns.item.tolist() == [*data.item[10:14], *data.item[7:10]]
    assert second.start.tolist() == [[0, 4]]
    assert first.columns.target_device is None


def test_events_on_the_device_are_not_copied(world: World) -> None:
    data = world([2, 5])
    columns = EventColumns.of(data)
    (user_batch,) = prefetch_batches(_user_batches(make_host_stream([data], columns), [0, 1]))
    assert user_batch.columns is columns


def test_the_next_batch_is_gathered_in_advance(world: World) -> None:
    """In another thread than the one that uses the device."""
    data, seen, gathered = world([2, 5, 3]), list[int](), threading.Semaphore(0)

    class Recording(Stream):
        def gather_events(self) -> Stream:
            seen.append(threading.get_ident())
            gathered.release()
            return super().gather_events()

    recording = Recording(**vars(make_host_stream([data], EventColumns.on_host(data, "cpu"))))
    arrivals = prefetch_batches([recording] * 3)
    next(arrivals)
    assert gathered.acquire(timeout=30)
    assert gathered.acquire(timeout=30)  # before it is used
    assert len(seen) == 2  # and no more than one waits, or memory would not be bounded
    assert len(list(arrivals)) == 2
    assert threading.get_ident() not in seen
