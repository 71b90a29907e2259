"""What is told of interactions besides item, rating and order: side information, ready to learn.

An item's categories are a table by item. What belongs to an event, its time and further columns by
name, is packed into one whole number per event: so a sketch carries it like any other field, and
every value lies on a grid. Numpy alone; tensors are made of it in `dips.stream.side_information`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dips.data.interactions import Int64, Interactions, Side
from dips.errors import ConfigError

CATEGORIES, TIME = "categories", "time"
"""Names with a meaning of their own; any other name is a column."""
NUMBER_BITS: Final = 12
"""Bits of a number: standardised, cut off at 8 deviations, in steps of 1/256; 0 where unknown."""
MIDDLE, STEPS = 1 << (NUMBER_BITS - 1), 256.0
ROOM: Final = 62
"""Bits for all columns of an event; the first `NUMBER_BITS` are the time's."""


def names_in(text: str) -> tuple[str, ...]:
    """The names of a comma-separated list, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def columns_in(text: str) -> tuple[str, ...]:
    """Those of them that are columns of the data."""
    return tuple(name for name in names_in(text) if name not in (CATEGORIES, TIME))


@dataclass(frozen=True)
class Coded:
    """How one column is packed: numbers standardised, names by their place among the known."""

    name: str
    shift: int
    """The bit at which its code starts."""
    center: float = 0.0
    spread: float = 1.0
    names: tuple[str, ...] = ()
    """What the codes 1, 2, ... stand for; empty where the column holds numbers."""

    @property
    def bits(self) -> int:
        """How many bits a code takes."""
        return len(self.names).bit_length() if self.names else NUMBER_BITS

    def codes(self, column: Side) -> Int64:
        """[events] codes; 0 stands for what is unknown."""
        if (column.names is None) != (not self.names):
            kinds = ("names", "numbers") if self.names else ("numbers", "names")
            raise ConfigError(f"column '{self.name}' held {kinds[0]} in training, now {kinds[1]}")
        if column.names is None:
            steps = np.rint((column.values - self.center) / self.spread * STEPS)
            steps = np.nan_to_num(np.clip(steps, 1 - MIDDLE, MIDDLE - 1), nan=-MIDDLE)
            numbers: Int64 = steps.astype(np.int64) + MIDDLE
            return numbers
        known = {name: place for place, name in enumerate(self.names, start=1)}
        places = np.array([known.get(name, 0) for name in column.names], np.int64)
        named: Int64 = places[column.values]
        return named


@dataclass(frozen=True, kw_only=True)
class SideInformation:
    """The side information that a run was asked to use."""

    kinds: int = 0
    """How many categories there are; 0: they are not used."""
    width: int = 0
    """The most categories that an item has."""
    time: bool = False
    """Whether a policy is told the time steps of the paper."""
    clock: Coded | None = None
    """How times are packed for the prediction of ratings."""
    columns: tuple[Coded, ...] = ()
    """Further columns of the events, for policies that learn."""
    table: Int64 | None = field(default=None, compare=False, repr=False)
    """[items, width] categories of each item, -1 where there is none; no part of `to_dict`."""

    @classmethod
    def of(cls, data: Interactions, names: Sequence[str], *, timed: bool = True) -> SideInformation:
        """What these names mean in the data; `timed`: whether predictions can use the time.

        Means, deviations and names are those of the whole source, as the range of ratings is, so
        that all splits of it agree.
        """
        _check(data, names)
        sides = cls(time=TIME in names)
        if TIME in names and timed:
            sides = dataclasses.replace(sides, clock=_coded(TIME, _times(data), 0))
        if CATEGORIES in names:
            table = category_table(data)
            assert data.categories is not None
            kinds, width = len(data.categories.names), table.shape[1]
            sides = dataclasses.replace(sides, kinds=kinds, width=width, table=table)
        columns, shift = [], NUMBER_BITS
        for name in names:
            if name not in (CATEGORIES, TIME):
                columns.append(_coded(name, data.side[name], shift))
                shift += columns[-1].bits
        if shift > ROOM:
            raise ConfigError(
                f"side {','.join(names)}: takes {shift} bits of an event and there are {ROOM}; use "
                "fewer columns, or fewer different names in them"
            )
        return dataclasses.replace(sides, columns=tuple(columns))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that data must have."""
        return tuple(column.name for column in self.columns)

    def pack(self, data: Interactions) -> Int64:
        """[events] all that is told of each event, as one number."""
        _check(data, [*self.names, *([TIME] if self.clock is not None else [])])
        packed = np.zeros(len(data.item), np.int64)
        for column in self.columns:
            packed |= column.codes(data.side[column.name]) << column.shift
        return packed if self.clock is None else packed | self.clock.codes(_times(data))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SideInformation:
        """From what `to_dict` gave."""
        clock = values.get("clock")
        return cls(**{
            **values,
            "clock": None if clock is None else _restored(clock),
            "columns": tuple(_restored(column) for column in values.get("columns", ())),
        })  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the table."""
        values = dataclasses.asdict(dataclasses.replace(self, table=None))
        return {name: value for name, value in values.items() if name != "table"}


NOTHING: Final = SideInformation()


def category_table(data: Interactions) -> Int64:
    """[items, width] codes of the categories of each item, -1 where there are no more."""
    assert data.categories is not None
    offsets, codes = data.categories.offsets, data.categories.codes
    lengths = np.diff(offsets)
    table = np.full((len(lengths), max(1, int(lengths.max(initial=0)))), -1, np.int64)
    place = np.arange(len(codes)) - np.repeat(offsets[:-1], lengths)
    table[np.repeat(np.arange(len(lengths)), lengths), place] = codes
    return table


def _coded(name: str, column: Side, shift: int) -> Coded:
    if column.names is not None:
        return Coded(name, shift, names=tuple(column.names))
    values = column.values[np.isfinite(column.values)].astype(np.float64)
    if len(values) == 0:
        raise ConfigError(f"side '{name}': there is no number in this column")
    return Coded(name, shift, float(values.mean()), float(values.std()) or 1.0)


def _restored(values: Mapping[str, Any]) -> Coded:
    return Coded(**{**values, "names": tuple(values["names"])})


def _times(data: Interactions) -> Side:
    assert data.time is not None
    return Side(data.time.astype(np.float64))


def _check(data: Interactions, names: Sequence[str]) -> None:
    """Refuse names that the data does not have."""
    there = list(data.side)
    there += [CATEGORIES] * (data.categories is not None) + [TIME] * (data.time is not None)
    for name in names:
        if name not in there:
            hint = "a prepared file keeps what 'dips data prepare --side' names"
            if name == CATEGORIES:
                hint = "a column of a table goes by its own name, for example genres"
            raise ConfigError(
                f"side '{name}': {data.name} has no such column; "
                f"it has {', '.join(there) or 'nothing of that kind'} ({hint})"
            )
