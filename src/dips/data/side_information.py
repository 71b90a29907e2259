"""Side information: item categories, event times and further event columns, encoded for models.

Categories are a table by item. The time and the further columns of an event are packed into one
integer, so a sketch stores them as one field and every value is a fixed-point number. This module
needs numpy only; `dips.stream.side_information` turns the integers into tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dips.data.interactions import EventColumn, Int64, Interactions
from dips.errors import ConfigError

CATEGORIES, TIME = "categories", "time"
"""Reserved names of side information; any other name is an event column."""
NUMBER_BITS: Final = 12
"""Bits of a number: standardised, clipped at 8 standard deviations, steps of 1/256; 0: unknown."""
MIDDLE: Final = 1 << (NUMBER_BITS - 1)
"""Code of the mean."""
STEPS: Final = 256.0
"""Steps per standard deviation."""
MAX_BITS: Final = 62
"""Bits of a packed event; the lowest `NUMBER_BITS` hold the time."""


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, without duplicates.

    >>> parse_names("time, price,time")
    ('time', 'price')
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def event_column_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return those names of side information that are further columns of the data."""
    return tuple(name for name in names if name not in (CATEGORIES, TIME))


@dataclass(frozen=True)
class ColumnEncoding:
    """How one event column is packed: standardised numbers, or codes of known names."""

    name: str
    shift: int
    """Lowest bit of the code."""
    center: float = 0.0
    """Mean of a column of numbers."""
    spread: float = 1.0
    """Standard deviation of a column of numbers."""
    names: tuple[str, ...] = ()
    """Names of the codes 1, 2, ...; empty if the column holds numbers."""

    @property
    def bits(self) -> int:
        """Number of bits of a code."""
        return len(self.names).bit_length() if self.names else NUMBER_BITS

    def codes(self, column: EventColumn) -> Int64:
        """Return [events] codes; 0 is a missing number or an unknown name.

        Raises:
            ConfigError: If the column holds names where training had numbers, or the reverse.
        """
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
    """The side information that a run uses, and how it is encoded."""

    kinds: int = 0
    """Number of categories; 0 if categories are not used."""
    width: int = 0
    """Largest number of categories of one item."""
    time: bool = False
    """Whether the policy gets the time steps of the paper."""
    clock: ColumnEncoding | None = None
    """Encoding of event times for the recommender; None if it does not use them."""
    columns: tuple[ColumnEncoding, ...] = ()
    """Encodings of further event columns, for learned policies."""
    table: Int64 | None = field(default=None, compare=False, repr=False)
    """[items, width] category codes of each item, -1 as padding; not part of `to_dict`."""

    @classmethod
    def of(cls, data: Interactions, names: Sequence[str], *, timed: bool = True) -> SideInformation:
        """Return the encodings of named side information.

        Means, deviations and names come from the events of `data`. Other names count as unknown.
        The table of categories covers all items, because it belongs to the catalogue.

        Args:
            data: The training users.
            names: `categories`, `time` and names of event columns.
            timed: Whether the recommender can use event times.

        Raises:
            ConfigError: If the data lacks a name, or the columns need more than `MAX_BITS` bits.
        """
        _check(data, names)
        sides, rows = cls(time=TIME in names), data.event_rows
        if TIME in names and timed:
            sides = dataclasses.replace(sides, clock=_encoding(TIME, _times(data).take(rows), 0))
        if CATEGORIES in names:
            table = category_table(data)
            assert data.categories is not None
            kinds, width = len(data.categories.names), table.shape[1]
            sides = dataclasses.replace(sides, kinds=kinds, width=width, table=table)
        columns, shift = [], NUMBER_BITS
        for name in names:
            if name not in (CATEGORIES, TIME):
                columns.append(_encoding(name, data.side[name].take(rows), shift))
                shift += columns[-1].bits
        if shift > MAX_BITS:
            raise ConfigError(
                f"side {','.join(names)}: takes {shift} bits of an event and there are {MAX_BITS}; "
                "use fewer columns, or fewer different names in them"
            )
        return dataclasses.replace(sides, columns=tuple(columns))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the event columns that the data must have."""
        return tuple(column.name for column in self.columns)

    def pack(self, data: Interactions) -> Int64:
        """Return [events] the side information of each event, packed into one integer.

        Raises:
            ConfigError: If the data lacks a column that this side information uses.
        """
        _check(data, [*self.names, *([TIME] if self.clock is not None else [])])
        packed = np.zeros(len(data.item), np.int64)
        for column in self.columns:
            packed |= column.codes(data.side[column.name]) << column.shift
        return packed if self.clock is None else packed | self.clock.codes(_times(data))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SideInformation:
        """Return the side information that `to_dict` described."""
        clock = values.get("clock")
        return cls(**{
            **values,
            "clock": None if clock is None else _restored(clock),
            "columns": tuple(_restored(column) for column in values.get("columns", ())),
        })  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the table of categories."""
        values = dataclasses.asdict(dataclasses.replace(self, table=None))
        return {name: value for name, value in values.items() if name != "table"}


NO_SIDE_INFORMATION: Final = SideInformation()


def category_table(data: Interactions) -> Int64:
    """Return [items, width] category codes of each item, padded with -1."""
    assert data.categories is not None
    offsets, codes = data.categories.offsets, data.categories.codes
    lengths = np.diff(offsets)
    table = np.full((len(lengths), max(1, int(lengths.max(initial=0)))), -1, np.int64)
    place = np.arange(len(codes)) - np.repeat(offsets[:-1], lengths)
    table[np.repeat(np.arange(len(lengths)), lengths), place] = codes
    return table


def _encoding(name: str, column: EventColumn, shift: int) -> ColumnEncoding:
    """Return the encoding of a column whose code starts at bit `shift`."""
    if column.names is not None:
        present = column.names.take(np.unique(column.values))
        return ColumnEncoding(name, shift, names=tuple(present))
    values = column.values[np.isfinite(column.values)].astype(np.float64)
    if len(values) == 0:
        raise ConfigError(f"side '{name}': there is no number in this column")
    return ColumnEncoding(name, shift, float(values.mean()), float(values.std()) or 1.0)


def _restored(values: Mapping[str, Any]) -> ColumnEncoding:
    return ColumnEncoding(**{**values, "names": tuple(values["names"])})


def _times(data: Interactions) -> EventColumn:
    assert data.time is not None
    return EventColumn(data.time.astype(np.float64))


def _check(data: Interactions, names: Sequence[str]) -> None:
    """Raise `ConfigError` for a name that the data does not have."""
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
