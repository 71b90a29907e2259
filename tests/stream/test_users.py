"""Streams: users by length, runs padded, names kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from dips.data.interactions import Interactions, from_arrays
from dips.data.side_information import SideInformation, parse_names
from dips.errors import DataError
from dips.numerics.hashing import combine, text_keys
from dips.stream import users
from dips.stream.users import EventColumns, Stream, make_stream, user_id_keys

World = Callable[..., Interactions]
StreamOf = Callable[[Sequence[Interactions]], Stream]


def test_users_are_sorted_by_length_and_ties_keep_their_order(
    world: World, stream_of: StreamOf
) -> None:
    data = world([2, 5, 2, 7, 5])
    stream = stream_of([data])
    assert stream.length.tolist() == [[7, 5, 5, 2, 2]]
    assert stream.user.tolist() == [[3, 1, 4, 0, 2]]
    assert stream.start.tolist() == [[9, 2, 16, 0, 7]]
    assert (stream.runs, stream.longest) == (1, 7)
    many = stream_of([world([1, 2] * 100)]).user[0]
    assert many.tolist() == [*range(1, 200, 2), *range(0, 200, 2)]


def test_runs_of_fewer_users_are_padded(world: World, stream_of: StreamOf) -> None:
    data = world([2, 5, 3])
    stream = stream_of([data.select([0, 1, 2]), data.select([2])])
    assert stream.length.tolist() == [[5, 3, 2], [3, 0, 0]]
    assert stream.user.tolist() == [[1, 2, 0], [0, -1, -1]]
    assert stream.start.tolist() == [[2, 7, 0], [7, 0, 0]]


def test_warmup_and_identity_travel_with_the_user(world: World, stream_of: StreamOf) -> None:
    data = replace(world([2, 5, 3]), warmup=np.array([1, 4, 2]))
    stream = stream_of([data])
    assert stream.warmup.tolist() == [[4, 2, 1]]
    assert torch.equal(stream.identity[0], text_keys(["1", "2", "0"]))
    assert torch.equal(user_id_keys(data.select([2, 0])), text_keys(["2", "0"]))


def test_keys_are_functions_of_user_seed_and_epoch(world: World, stream_of: StreamOf) -> None:
    data = world([3, 3, 3])
    stream = stream_of([data, data.select([2, 1])])
    keys = stream.keys([0, 0])
    assert torch.equal(keys[0], combine(text_keys(["0", "1", "2"]), 0, 0))
    assert torch.equal(keys[1, :2], keys[0, [2, 1]])  # whatever the run and the place in it
    everything = torch.cat([stream.keys([s, s], e)[0] for s in (0, 1) for e in (0, 1, 2)])
    assert len(everything.unique()) == 18


def test_columns_fill_in_what_is_absent() -> None:
    columns = EventColumns.of(from_arrays([0, 0, 1], [3, 1, 2]))
    assert columns.item.tolist() == [3, 1, 2]
    assert columns.rating.tolist() == [1.0, 1.0, 1.0]
    assert columns.time.tolist() == [0, 0, 0]
    given = EventColumns.of(from_arrays([1, 0], [3, 1], [4.5, 2.0], [50, 70]))
    assert (given.rating.tolist(), given.time.tolist()) == ([2.0, 4.5], [70, 50])
    assert given.rating.dtype == torch.float32


def test_large_data_stay_in_host_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, not copied; the CPU has them at once."""
    data = world([2, 5])
    monkeypatch.setattr(users, "MAX_RESIDENT_EVENTS", 6)
    columns = EventColumns.of(data, "cuda")
    assert columns.device == torch.device("cuda")
    assert columns.item.device == torch.device("cpu")
    assert columns.item.dtype == torch.int32
    assert columns.token is columns.item
    assert data.rating is not None
    assert columns.rating.data_ptr() == data.rating.ctypes.data
    assert EventColumns.of(data).target_device is None
    assert EventColumns.of(data).item.dtype == torch.int64


def test_memory_maps_are_copied(world: World) -> None:
    """Torch warns of memory that must not be written to, and here warnings are errors."""
    data = world([2, 5])
    data.item.flags.writeable = False
    assert EventColumns.of(data).item.tolist() == data.item.tolist()


@pytest.mark.parametrize("names", ["", "time"])
def test_a_stream_from_host_memory_is_the_same(world: World, names: str) -> None:
    """Each run has the events of its own users, wherever they lie."""
    data = replace(world([2, 5, 3, 4]), warmup=np.array([1, 4, 2, 0]))
    parts, sides = (
        [data, data.select([2, 0])],
        SideInformation.of(data, parse_names(names), timed=True),
    )
    usual = make_stream(parts, EventColumns.of(data, side_information=sides))
    moved = make_stream(parts, EventColumns.on_host(data, "cpu", sides))
    assert len(moved.columns.item) == 14 + 5
    assert moved.start[1].tolist() == [14, 17, 0, 0]  # -1 pads, with no events
    for name in ("length", "warmup", "user", "identity"):
        assert torch.equal(getattr(moved, name), getattr(usual, name))
    for name in ("item", "rating", "time", "side", "token"):
        assert _told(moved, name) == _told(usual, name)
        assert getattr(moved.columns, name).dtype == getattr(usual.columns, name).dtype


def _told(stream: Stream, name: str) -> list[list[float]]:
    """Return the events of a column for every user of every run."""
    column: torch.Tensor = getattr(stream.columns, name)
    ways = zip(stream.start.flatten().tolist(), stream.length.flatten().tolist(), strict=True)
    return [column[start : start + length].tolist() for start, length in ways]


def test_parts_of_another_dataset_are_refused(world: World) -> None:
    with pytest.raises(DataError, match="must share one dataset's columns"):
        make_stream([world([2, 5])], EventColumns.of(world([2, 6])))


def test_some_users_of_every_run(world: World, stream_of: StreamOf) -> None:
    """They keep their names, and so their draws; -1 pads."""
    data = replace(world([2, 5, 3, 4]), warmup=np.array([1, 4, 2, 0]))
    stream = stream_of([data, data.select([0, 2])])
    some = stream.take(torch.tensor([[0, 2, 3], [1, -1, -1]]))
    assert some.length.tolist() == [[5, 3, 2], [2, 0, 0]]
    assert some.user.tolist() == [[1, 2, 0], [0, -1, -1]]
    assert some.start.tolist() == [[2, 7, 0], [0, 0, 0]]
    assert some.warmup.tolist() == [[4, 2, 1], [1, 0, 0]]
    assert torch.equal(some.keys([3, 4], 2)[0], stream.keys([3, 4], 2)[0, [0, 2, 3]])
    assert some.columns is stream.columns


def test_the_index_of_items(world: World) -> None:
    columns = EventColumns.of(
        replace(world([5, 3]), item=np.array([9, 4, 9, 7, 4, 4, 9, 2], np.int32))
    )
    items, place = columns.item_index
    assert items.tolist() == [2, 4, 7, 9]
    assert torch.equal(items[place], columns.item)
